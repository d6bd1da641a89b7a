"""What serves and why, in words and as plain data: for commands and for the controller's page."""
