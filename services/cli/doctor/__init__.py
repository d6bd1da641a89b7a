"""What this host has and lacks for a fleet."""
