"""What a store's files tell of sizes, lags and latencies: for `stats`, `top` and Prometheus."""
