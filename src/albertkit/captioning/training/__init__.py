"""Training a captioner on prepared clips."""
