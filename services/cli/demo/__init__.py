"""The demo: a real sentence embedding model, its recipe and real sentences."""
