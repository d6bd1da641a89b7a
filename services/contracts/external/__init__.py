"""Models that other servers serve: how they are described and connected to."""
