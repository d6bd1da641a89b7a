"""Names for the dimensions of a file: which are equal, and what each is called."""
