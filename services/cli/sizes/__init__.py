"""Sizes of requests, and buckets for them."""
