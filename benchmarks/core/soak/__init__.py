"""`python -m benchmarks.core.soak`: a cluster at work for half an hour; see `__main__`."""
