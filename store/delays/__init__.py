"""Delivery of delayed messages."""
