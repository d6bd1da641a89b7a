"""Tensors and messages of the KServe v2 protocol."""
