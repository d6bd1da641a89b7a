"""What is known of a model: its versions and its recipe."""
