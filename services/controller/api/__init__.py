"""FleetControl, its port and the state that it shows."""
