"""The index by key (RocketMQ's IndexFile)."""
