"""Each row: us and named peers, on the same work, on this machine, in one run; `python -m benchmarks --help` lists them."""
