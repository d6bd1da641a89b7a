"""A gRPC server on asyncio with an HTTP/2 of its own; it knows nothing of models."""
