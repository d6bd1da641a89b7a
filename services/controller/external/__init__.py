"""External servers: checked, and shown in the fleet's state."""
