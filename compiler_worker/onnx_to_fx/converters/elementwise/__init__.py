"""Ops on each element, and changes of its type."""
