"""A call: its handler, what that knows of it, and its end."""
