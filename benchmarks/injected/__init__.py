"""What `benchmarks/faults.py` does to runs; the tests' own functions play most of it."""
