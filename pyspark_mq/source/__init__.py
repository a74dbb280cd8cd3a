"""Reading with `format("mq")`: Spark's readers and their parts."""
