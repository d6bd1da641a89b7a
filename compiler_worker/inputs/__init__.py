"""Inputs that engines are compared and timed with."""
