"""Logs of this host's fleet."""
