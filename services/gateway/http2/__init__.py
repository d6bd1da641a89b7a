"""A gRPC server on asyncio that reads HTTP/2 itself; see `server.py`."""
