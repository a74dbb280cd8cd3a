"""Files and folders: atomic writes, segments, flushing, settings, and the JSON files in RocketMQ's shapes."""
