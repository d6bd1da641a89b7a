"""Ops of neural networks: products, attention, convolutions, norms, reductions, quantisation."""
