"""Reading with `format("mq")`: the readers that Spark asks, and their parts."""
