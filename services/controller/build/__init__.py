"""Engines that are missing: what is wanted against what is built."""
