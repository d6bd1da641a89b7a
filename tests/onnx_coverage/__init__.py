"""What `onnx_to_fx` does with every case of ONNX's backend test suite, written as one table."""
