"""Sends requests to gateways."""
