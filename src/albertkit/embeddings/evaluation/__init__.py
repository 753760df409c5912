"""Evaluation of vectors: correlations with scores, retrieval, anisotropy, beside a bag of tokens."""
