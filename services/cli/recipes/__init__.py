"""Recipes as files: written, checked, and their JSON schema."""
