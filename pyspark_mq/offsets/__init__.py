"""The offsets of a query: in its checkpoint, at its start and end, and of lost messages."""
