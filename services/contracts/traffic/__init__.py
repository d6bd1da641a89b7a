"""Rows of real requests: their form, their encryption, and how far they have moved."""
