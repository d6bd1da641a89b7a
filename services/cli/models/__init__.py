"""Adds, withdraws and lists models and their versions."""
