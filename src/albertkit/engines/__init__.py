"""Engines: one set of weights made ready once, and run as fast as the machine can."""
