"""Recovery, retention, topic deletion, verify and repair."""
