"""Which engine a device serves, and what timings decide that."""
