"""The files of a store: CommitLog, ConsumeQueues, IndexFiles, and small JSON files of settings, topics and offsets."""
