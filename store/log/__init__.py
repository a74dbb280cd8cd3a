"""CommitLog and ConsumeQueues, and dispatch: which record enters which queue."""
