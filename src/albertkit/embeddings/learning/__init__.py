"""Training: examples, losses, what is chosen by, one run or several seeds."""
