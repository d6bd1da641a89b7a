"""The gRPC front: KServe v2 in, framed requests out to replicas."""
