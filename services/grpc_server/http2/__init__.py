"""HTTP/2 of one connection: bytes to frames, frames to streams, answers to bytes."""
