"""Run halves: one file for each engine kind, or a package."""
