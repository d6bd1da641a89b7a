"""Rewrites of exported graphs that make what a compiler generates faster, each small and exact."""
