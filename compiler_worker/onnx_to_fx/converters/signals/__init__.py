"""Ops on images, sounds and texts."""
