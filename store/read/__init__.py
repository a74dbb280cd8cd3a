"""Scans, getMessage, queries and filters of published messages."""
