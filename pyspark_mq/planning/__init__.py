"""Planning in the driver: the queues of a query, the ranges of its next batch, and their partitions."""
