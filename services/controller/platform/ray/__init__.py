"""Ray as a source of nodes, a place for builds, and Ray Serve for replicas."""
