"""Explains what serves, and shows what happened."""
