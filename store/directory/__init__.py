"""Implements `Log`, `Group` and `Member` for a store's directory."""
