"""Devices, generations and engine kinds."""
