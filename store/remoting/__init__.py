"""RocketMQ's protocol: frames and commands, a client, and a server that maps commands to calls of the store."""
