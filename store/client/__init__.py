"""Producing and consuming in plain Python: what a user's program holds, and the threads that it needs."""
