"""Tensors that clients of this host keep in shared memory."""
