"""Graphs inside of nodes: bodies of loops, written out or as one op."""
