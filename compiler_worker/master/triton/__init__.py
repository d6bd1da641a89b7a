"""A model of a Triton repository as a source: its configuration, its files, its recipe."""
