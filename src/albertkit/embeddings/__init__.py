"""Sentence embeddings: texts to vectors; training, distillation, silver data, evaluation."""
