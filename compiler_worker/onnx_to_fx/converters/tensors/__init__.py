"""Ops that make, index, arrange and look up tensors; sequences and optionals of them."""
