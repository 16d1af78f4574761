"""What episodes leave on disk: steps, one line for each episode, states of agents, checkpoints."""
