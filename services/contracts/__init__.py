"""What the parts promise each other: small values, no heavy imports."""
