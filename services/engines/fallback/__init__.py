"""What serves where no engine fits: the master, compiled by torch inside `load`."""
