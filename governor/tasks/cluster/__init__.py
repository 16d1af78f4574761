"""The Ray cluster: its head, its nodes, the agent on each node, and their liveness."""
