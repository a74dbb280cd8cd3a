"""Writing with `format("mq")`: rows become messages, at least once or exactly once."""
