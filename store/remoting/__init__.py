"""RocketMQ's protocol: frames and commands, a client, and a server that translates commands to verbs of the store."""
