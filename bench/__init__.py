"""Timing harness for quantised linear layers; see ``docs/benchmarking.md``."""
