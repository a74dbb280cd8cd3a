"""Sizes, lags and latencies of a store, read from its files, for `stats`, `top` and Prometheus."""
