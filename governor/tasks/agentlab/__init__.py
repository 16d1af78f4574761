"""Task graphs as AgentLab's users know them: `run_exp`, `execute_task_graph`, `poll_for_timeout`."""
