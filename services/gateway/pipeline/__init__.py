"""The chain of interceptors that a request passes on its way to a replica."""
