"""Messages that are to be delivered later: what a broker does with them, and the thread that does it."""
