"""The control plane: store state in, replicas and endpoints out."""
