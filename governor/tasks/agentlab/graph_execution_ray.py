"""What stands in AgentLab's module of this name after `governor.tasks.agentlab.use()`.

AgentLab's own experiments catch what goes wrong in ``run()`` and write it into their folders, where its `find_incomplete` reads
it. So an experiment has failed here when AgentLab will run it again; those that depend on it have run all the same, as there.
"""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from governor import logs
from governor.messages import TaskRecord
from governor.tasks import script_output
from governor.tasks.agentlab import ray_tasks
from governor.tasks.errors import TaskFailed

if TYPE_CHECKING:
    from collections.abc import Sequence

REPLACED: Final = "agentlab.experiments.graph_execution_ray"
SHARED: Final = ("_episode_timeout", "get_elapsed_time", "poll_for_timeout", "run_exp")
"""Names of `governor.tasks` that it has as they are."""
SUMMARY: Final = "summary_info.json"
UNREADABLE: Final = f"{SUMMARY}.unreadable"

log = logs.get_logger()


def take_place() -> None:
    """Puts these functions into AgentLab's module. Raises ModuleNotFoundError."""
    try:
        theirs = import_module(REPLACED)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{REPLACED} cannot be imported ({error}): install agentlab where this script runs",
            name=error.name,
        ) from error
    vars(theirs).update({name: getattr(ray_tasks, name) for name in SHARED})
    vars(theirs).update(execute_task_graph=execute_task_graph)


def execute_task_graph(exp_args_list: Sequence[Any], avg_step_timeout: float = 60) -> dict[Any, Any]:
    """As `governor.tasks.execute_task_graph`; but an experiment whose folder says that it is incomplete, or ended with an error,
    is a `TaskFailed` too. Each failure is logged, for a study does not look at what this returns, and prints have the
    `exp_name` of their experiment before them: their ids are UUIDs.
    """
    experiments = list(exp_args_list)
    names = {str(each.exp_id): str(each.exp_name) for each in experiments if getattr(each, "exp_name", None)}
    with script_output.shown_as(names):
        found = ray_tasks.execute_task_graph(experiments, avg_step_timeout)
    for experiment in experiments:
        result = _as_in_its_folder(experiment, found[experiment.exp_id])
        found[experiment.exp_id] = result
        if isinstance(result, TaskFailed):
            name, error = names.get(result.record.task, result.record.task), result.record.error
            log.warning("experiment.failed", experiment=name, outcome=result.outcome, reason=error)
    return found


def _as_in_its_folder(experiment: Any, result: Any) -> Any:
    """The result, or a TaskFailed if AgentLab's `find_incomplete` does not take the experiment for done."""
    folder = getattr(experiment, "exp_dir", None)
    if folder is None or getattr(
        experiment, "is_dummy", False
    ):  # of an earlier launch; it has done nothing in this one
        return result
    error = _fault_of(Path(folder))
    if not error or isinstance(result, TaskFailed):
        return result
    name = str(experiment.exp_id)
    return TaskFailed(TaskRecord(task=name, run=0, outcome="failed", attempts=1, error=error))


def _fault_of(folder: Path) -> str:
    """Why an experiment is not done, or nothing. A summary that cannot be parsed, as where its writer was killed or the disk
    was full, is renamed: AgentLab's reports and `find_incomplete` would end with an error at it, for all of the study.
    """
    from agentlab.experiments.loop import ExpResult  # noqa: PLC0415  # whoever has such experiments has it

    written = ExpResult(folder)
    try:
        status = written.status
    except ValueError as error:
        with suppress(OSError):
            (folder / SUMMARY).rename(folder / UNREADABLE)
        return f"its {SUMMARY} is half written, and was renamed {UNREADABLE}: {error}"
    if status == "error":
        return ray_tasks.parse_and_truncate_error(str(written.summary_info["err_msg"]))
    return "" if status == "done" else f"its {SUMMARY} says neither terminated nor truncated"
