"""Replicas of each model on each generation: what is wanted against what is deployed."""
