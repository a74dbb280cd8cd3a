"""A RocketMQ cluster as a log of any kind, see `any_log`: what name servers and brokers answer."""
