"""Moving shapes: videos whose right caption is known, to see whether a captioner learns what it should."""
