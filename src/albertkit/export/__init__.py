"""Models as ONNX graphs that ONNX Runtime runs."""
