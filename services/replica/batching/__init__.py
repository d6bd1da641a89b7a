"""The queue of requests, and how batches are formed, joined and split."""
