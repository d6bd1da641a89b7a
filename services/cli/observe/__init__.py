"""Prometheus and Grafana beside a fleet."""
