"""What is recorded of requests: metrics, spans and the access log."""
