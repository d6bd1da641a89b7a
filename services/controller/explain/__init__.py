"""What serves and why, as plain data and in words: for commands and the page."""
