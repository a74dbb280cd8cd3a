"""`MessageStore`, an open store directory, built from the packages below."""
