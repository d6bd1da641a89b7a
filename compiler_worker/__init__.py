"""Builds, proves, measures and publishes engines from ONNX masters."""
