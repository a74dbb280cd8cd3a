"""The work of a RocketMQ broker beside its log: pulls, groups, retries, transactions."""
