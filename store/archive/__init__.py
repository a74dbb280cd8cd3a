"""Old messages in the layout of RocketMQ's tiered store, on any file system."""
