"""Writing with `format("mq")`: rows become messages, once at least or exactly once."""
