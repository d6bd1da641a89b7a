"""What a master's inputs may hold and what proofs draw of them, found in its graph."""
