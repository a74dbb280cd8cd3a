"""Producers and consumers in plain Python, and their threads."""
