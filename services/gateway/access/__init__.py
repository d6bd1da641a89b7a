"""Who may ask what: bearer tokens, their permissions, and TLS."""
