"""Ops that torch has no function for, written in torch.

A converter emits one call to such a function. It runs as it is in eager mode; export and
torch.compile trace through it, so the graph has torch's own ops alone. The same
rules hold as for the graph: sizes are read from shapes, never from data.
"""
