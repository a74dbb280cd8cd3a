"""The work of a RocketMQ broker beside its log: holding and answering pulls, groups, retries, transactions."""
