"""What a parent and its children share: jobs, requests, and the process itself."""
