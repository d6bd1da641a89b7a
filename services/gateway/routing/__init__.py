"""Which replicas there are, and which of them a request goes to."""
