"""A RocketMQ cluster as a `Log`: what name servers and brokers answer."""
