"""What keeps a directory in order: recovery, retention, verify, repair."""
