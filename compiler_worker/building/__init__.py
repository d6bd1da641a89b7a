"""A build: from a planned key to a published engine, or to the reason why there is none."""
