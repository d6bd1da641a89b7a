"""The controller's /metrics."""
