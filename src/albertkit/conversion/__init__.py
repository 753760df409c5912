"""Conversion of checkpoints: TensorFlow 1 and 2, the hub, BERT; and TensorFlow's files, read and written without TensorFlow."""
