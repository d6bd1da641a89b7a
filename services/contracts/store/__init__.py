"""The artifact store, and files of it on this disk."""
