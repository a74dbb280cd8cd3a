"""A RocketMQ cluster as a log of any kind, see `log_protocol`: what name servers and brokers answer."""
