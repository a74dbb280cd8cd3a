"""Shared by all packages of `store`: errors, and the types and protocols of logs."""
