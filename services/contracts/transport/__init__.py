"""Frames between gateway and replica, and memory that both map."""
