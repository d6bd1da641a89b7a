"""Sources of nodes; each is a NodeSource of `services.controller.interfaces`."""
