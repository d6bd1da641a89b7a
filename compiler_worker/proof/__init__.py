"""What a proof compares, by which bounds, and what it would have refused."""
