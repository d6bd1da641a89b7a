"""Signatures of engines, and the fleet's tokens and certificates."""
