"""Rules for Prometheus and boards for Grafana, made from the catalogue's objects."""
