"""What `models add` checks of a model before anything is built."""
