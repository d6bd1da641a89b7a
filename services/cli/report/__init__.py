"""`smelt report`: what the store holds of a model version, as one HTML file."""
