"""Files in a directory or on an object store, by URL. Archives, ledgers and staged rows are stored there."""
