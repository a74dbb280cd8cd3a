"""What a RocketMQ broker does with a log: holding and answering pulls, groups, retries, transactions."""
