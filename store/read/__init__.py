"""Reading what is published: scans, getMessage, queries, filters."""
