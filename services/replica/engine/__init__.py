"""Choosing, checking, loading, running and replacing an engine."""
