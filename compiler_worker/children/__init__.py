"""What a parent and its throw-away children share: jobs, requests, and the process itself."""
