"""Parsing of the options of `format("mq")`: of a query, of a write, and of a cluster. It raises `OptionError`."""
