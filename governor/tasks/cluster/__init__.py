"""The Ray cluster: its head, its nodes, the agent on each node, and whether they are alive."""
