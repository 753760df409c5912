"""The one training loop: optimizers, schedules, exact resume, live display."""
