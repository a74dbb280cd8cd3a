"""Reading published messages: scans, getMessage, queries, filters."""
