"""The device of this process, and the versions of its libraries."""
