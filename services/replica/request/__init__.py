"""From a request's bytes to checked tensors, and from outputs to an answer."""
