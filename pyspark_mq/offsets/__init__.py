"""Where a query stands in its queues: positions, checkpoints, starts and ends, and what is lost."""
