"""What there is to build for a class of nodes."""
