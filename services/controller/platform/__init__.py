"""Where nodes are, builds run and replicas are placed."""
