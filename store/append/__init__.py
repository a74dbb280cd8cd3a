"""Append records, publish them, and wait for publications."""
