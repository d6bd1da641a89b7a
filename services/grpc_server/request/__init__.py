"""The request of a call: DATA to messages, within the memory that there is."""
