"""The offsets of a query: its checkpoint, its start and end, and the detection of lost messages."""
