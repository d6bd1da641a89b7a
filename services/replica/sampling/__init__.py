"""Keeps rows of answered requests, as the recipe asks for."""
