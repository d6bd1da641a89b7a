"""A call: its handler, the handler's context, and its end."""
