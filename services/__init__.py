"""The processes that serve: gateway, replicas, controller, command line."""
