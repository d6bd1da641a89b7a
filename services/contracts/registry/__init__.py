"""Everything published in the store, by document."""
