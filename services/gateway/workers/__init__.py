"""Several gateway processes on one port, and the state they share."""
