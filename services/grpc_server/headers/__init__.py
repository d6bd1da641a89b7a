"""Header blocks: their fragments, HPACK, and what gRPC reads from the fields."""
