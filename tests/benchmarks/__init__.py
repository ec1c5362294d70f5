"""Speed and memory of ptml beside its peers: ``python -m tests.benchmarks``."""
