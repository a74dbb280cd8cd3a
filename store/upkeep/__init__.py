"""Maintenance of a store's directory: recovery, retention, topic deletion, verify and repair."""
