"""What the options of `format("mq")` say: of a query, of a write, on a cluster; which log they name."""
