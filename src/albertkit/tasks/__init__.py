"""Fine-tuning and evaluation: data to features to head to predictions to metrics."""
