"""Builds engines, and shows what is built."""
