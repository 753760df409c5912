"""What vectors are worth: correlations with scores, retrieval, anisotropy, beside a bag of pieces."""
