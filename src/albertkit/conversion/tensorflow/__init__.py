"""TensorFlow's files without TensorFlow: tensor bundles, object graphs, SavedModels, TFRecords."""
