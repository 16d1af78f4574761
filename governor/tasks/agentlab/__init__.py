"""The parts of `ray_tasks`, under AgentLab's names."""
