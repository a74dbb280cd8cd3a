"""`MessageStore`, a store directory that is open, composed of the rooms below."""
