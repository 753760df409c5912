"""Evaluation of vectors: correlations with scores, retrieval, anisotropy, compared with a bag of tokens."""
