"""Authentication and authorization: bearer tokens, their permissions, and TLS."""
