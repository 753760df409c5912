"""Programs that run in processes of their own, where they need it in other interpreters; see `benchmarks/peers.py`."""
