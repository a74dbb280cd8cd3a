"""Shared by all packages of `store`: errors, the types of a log, and the protocols of logs and of groups."""
