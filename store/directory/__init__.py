"""A directory as a log and as a group of consumers."""
