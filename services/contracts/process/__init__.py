"""Settings, start and end of a process."""
