"""Events: what has changed is appended to the store."""
