"""Planning beside Spark's driver: which queues a query has, what its next batch reads, and as which partitions."""
