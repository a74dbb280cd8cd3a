"""RocketMQ's format on disk: its layout, encoding and decoding."""
