"""Starts, stops and shows the fleet of this host."""
