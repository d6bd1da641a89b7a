"""Puts load on a served model and reports what came of it."""
