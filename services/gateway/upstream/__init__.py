"""Connections to replicas, and the memory that large requests are read into."""
