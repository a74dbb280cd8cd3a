"""Reading with `format("mq")`: the readers that Spark asks, and what they are composed of."""
