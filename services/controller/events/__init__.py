"""The event trail: what is news is appended to the store."""
