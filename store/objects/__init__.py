"""Files in a directory or on an object store, by URL: archives, ledgers and staged rows."""
