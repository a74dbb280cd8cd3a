"""Appending, from the lock to the publication; what is published, and waiting for it."""
