"""The RPCs of the inference service, and how errors become statuses."""
