"""The archive: old messages in RocketMQ's tiered layout, on any file system."""
