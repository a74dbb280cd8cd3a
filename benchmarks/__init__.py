"""One file a question; each prints ratios measured in one run. `python -m benchmarks --help`."""
