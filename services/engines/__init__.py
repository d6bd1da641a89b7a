"""Run halves: one engine kind, one file."""
