"""What a replica reports: state to the controller, statistics, metrics, spans."""
