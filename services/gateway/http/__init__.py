"""The HTTP port: KServe v2 and OpenAI paths, before the handlers that gRPC calls."""
