"""Numbers and names as text for people."""
