"""Task graphs as AgentLab's users know them: `run_exp`, `execute_task_graph`, `poll_for_timeout`; `use` for its own studies."""

from __future__ import annotations

__all__ = ["use"]


def use() -> None:
    """From now on AgentLab's own `Study` and `run_experiments` run on this engine, in this process and those that it forks.

    The functions of `governor.tasks` take the places of those of the same names in `agentlab.experiments.graph_execution_ray`;
    call it before your script imports any from there. Again: nothing. Raises ModuleNotFoundError without AgentLab.
    """
    from governor.tasks.agentlab import graph_execution_ray  # noqa: PLC0415  # heavy

    graph_execution_ray.take_place()
