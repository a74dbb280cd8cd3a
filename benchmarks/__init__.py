"""Benchmarks, one question in each file. Each prints ratios measured in one run."""
