"""Timing harness: every implementation measured the same way, against a cold read of the same bytes. See
``docs/benchmarking.md``."""
