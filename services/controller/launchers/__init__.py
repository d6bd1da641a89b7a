"""Ways to run build tasks; each is a BuildLauncher of `services.controller.interfaces`."""
