"""Build halves: one engine kind, one file."""
