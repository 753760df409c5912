"""Metrics, by scikit-learn and scipy, and as the official scripts compute them; bootstrap intervals for all of them."""
