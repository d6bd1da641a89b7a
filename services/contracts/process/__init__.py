"""Settings and life cycle of a process."""
