"""Metrics as data, and their bindings."""
