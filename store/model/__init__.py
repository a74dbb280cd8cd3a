"""What all rooms share: errors, the nouns of a log, and the protocols of logs and of groups."""
