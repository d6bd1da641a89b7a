"""What to try first for a model, and what to expect of it."""
