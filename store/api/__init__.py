"""`MessageStore`, an open store directory."""
