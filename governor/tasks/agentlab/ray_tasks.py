"""The task graph of AgentLab and MedAgentGym, under the names that their users import: a thin face of the engine.

Experiments carry `exp_id`, `depends_on`, `env_args`, and ``run()`` or ``arun()``; `exp_name` and `episode_timeout` where
they like. What differs from the model, on purpose:
1. Each experiment has a deadline of its own, counted from its start; what misses it is dead soon after, and seen dead.
2. What failed is an exception of ours in the result (`TaskFailed`): it names the outcome, and for ``upstream_failed``
   the task at the root. An experiment is executed once.
3. A graph with faults is refused with all of them, before anything runs.
4. With `folder`, a study that is started again keeps what succeeded and runs the rest.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
import re
from collections.abc import Mapping
from functools import partial
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from governor import logs
from governor.messages import TaskSpec
from governor.tasks.agentlab.foreign import Foreign, elapsed_of, end_of
from governor.tasks.agentlab.garbage import older_objects_spared
from governor.tasks.agentlab.listeners import TaskRef
from governor.tasks.agentlab.session import GraphSession
from governor.tasks.api import SchedulerConfig, TaskContext
from governor.tasks.errors import GraphError
from governor.tasks.runner_process import calls
from governor.tasks.scheduling import graph
from governor.tasks.scheduling.graph import GraphFault

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

LONGEST: Final = 10 * 3600.0
"""Seconds for an experiment that has no `max_steps`."""
ERROR_CHARACTERS: Final = 2_000
OPTIONS: Final = {"name", "num_cpus", "num_gpus", "memory", "resources", "max_retries"}
ALWAYS: Final = 2**31

log = logs.get_logger()


class RunExp:
    """`run_exp` with options: called, it runs an experiment here and now; ``remote`` runs it on a runner."""

    def __init__(self, options: Mapping[str, Any] | None = None) -> None:
        self._options = dict(options or {})

    def __call__(self, exp_arg: Any, *dependencies: Any, avg_step_timeout: float = 60) -> Any:
        return run_exp(exp_arg, *dependencies, avg_step_timeout=avg_step_timeout)

    def options(self, **options: Any) -> RunExp:
        """As Ray's: ``name``, ``num_cpus``, ``num_gpus``, ``memory``, ``resources`` and ``max_retries`` (-1: without
        end). Raises ValueError for others, and for what is no number, or a negative one.
        """
        unknown = sorted(options.keys() - OPTIONS)
        if unknown:
            raise ValueError(
                f"run_exp has no option {', '.join(unknown)}; it has {', '.join(sorted(OPTIONS))}"
            )
        _require_amounts(options)
        return RunExp({**self._options, **options})

    def remote(self, exp_arg: Any, *dependencies: Any, avg_step_timeout: float = 60) -> TaskRef:
        """Runs the experiment on a runner once all `dependencies` have succeeded; returns at once.

        Dependencies are what ``remote`` gave, or ``ray.ObjectRef``; other values have ended already. The results of the
        former are its `inputs`. Raises TypeError for what cannot be sent to a runner, and ConductorError without Ray.
        """
        retries = int(self._options.get("max_retries") or 0)
        return GraphSession.shared().submit_one(
            exp_arg,
            name=str(self._options.get("name") or exp_arg.exp_id),
            timeout=_episode_timeout(exp_arg, avg_step_timeout),
            retries=ALWAYS if retries < 0 else retries,
            resources=_resources(self._options),
            after=[each if isinstance(each, TaskRef) else end_of(each) for each in dependencies],
        )


def _with_remote(function: Callable[..., Any]) -> RunExp:
    """The same function, with the other methods: ``ray.remote`` takes functions alone."""
    engine: Any = RunExp()
    vars(function).update(options=engine.options, remote=engine.remote)
    return cast("RunExp", function)


@_with_remote
def run_exp(exp_arg: Any, *dependencies: Any, avg_step_timeout: float = 60) -> Any:
    """Called, it runs the experiment in this process and gives what it returns; ``remote`` runs it on a runner, and
    ``ray.remote(run_exp)`` makes a task of plain Ray of it.

    Dependencies have been run before, save those that ``remote`` gave: they are waited for, and a TaskFailed of theirs is
    raised. Without a process of its own nothing can end it in time, so `avg_step_timeout` (seconds) bounds only ``arun``.
    """
    inputs = {each.key: each.get() for each in dependencies if isinstance(each, TaskRef)}
    run = getattr(exp_arg, "run", None)
    method = run if callable(run) else exp_arg.arun
    context = partial(_context, exp_arg)
    returned = method(**calls.arguments(method, {}, {"inputs": lambda: inputs, "context": context}))
    if not inspect.isawaitable(returned):
        return returned

    async def awaited() -> Any:
        async with asyncio.timeout(_episode_timeout(exp_arg, avg_step_timeout)):
            return await returned

    return asyncio.run(awaited())


def execute_task_graph(
    exp_args_list: Sequence[Any],
    avg_step_timeout: float = 60,
    *,
    folder: Path | str | None = None,
    config: SchedulerConfig | None = None,
) -> dict[Any, Any]:
    """Runs experiments, each after those that it depends on, as many at once as the cluster has CPUs.

    Args:
        exp_args_list: the experiments. avg_step_timeout: seconds; see `_episode_timeout`.
        folder: where results are kept, so that the same call, started again, runs only what has not succeeded.
        config: address of Ray, grace and others; None: Ray of this process, or a head of its own.

    Returns:
        By `exp_id`, in the order given: what ``run()`` returned, or a `TaskFailed`. An empty list gives an empty dict.

    Raises:
        GraphError: duplicate or unknown ids, self-dependencies, cycles. TypeError: an experiment that cannot be sent.
        ConductorError: no Ray to be had. OSError: no room for the experiments on the disk. Nothing was run in any of these cases.
    """
    experiments = list(exp_args_list)
    if not experiments:
        return {}
    specs = _specs_of(experiments, [_episode_timeout(each, avg_step_timeout) for each in experiments])
    with older_objects_spared(), GraphSession.of_graph(config, folder) as session:
        return session.run_graph(experiments, specs)


def _specs_of(experiments: Sequence[Any], timeouts: Sequence[float]) -> list[TaskSpec]:
    """Tasks without their calls. Ids may be anything that a dict takes as a key; the engine knows them by their text, so 1
    and "1" are one id. Raises GraphError with all faults.
    """
    found: list[GraphFault] = []
    specs: list[TaskSpec] = []
    for index, (each, timeout) in enumerate(zip(experiments, timeouts, strict=True)):
        name = getattr(each, "exp_id", None)
        if name is None:
            message = f"experiments[{index}] has no exp_id"
            found.append(GraphFault(task_index=index, field="id", message=message))
            continue
        needs = getattr(each, "depends_on", None) or ()
        if isinstance(needs, str):
            message = f'experiment "{name}" has depends_on={needs!r}, which is a text and not a list of ids'
            found.append(GraphFault(task_index=index, field="depends_on", message=message))
            needs = ()
        specs.append(TaskSpec(id=str(name), call="", depends_on=tuple(map(str, needs)), timeout=timeout))
    if not found:
        found = graph.faults(specs, noun="experiment")
    if found:
        raise GraphError(found)
    return specs


def poll_for_timeout(tasks: Mapping[str, Any], timeout: float, poll_interval: float = 1.0) -> dict[str, Any]:
    """Waits for all tasks and ends those that run for more than `timeout` seconds.

    Args:
        tasks: by id, what ``run_exp.remote`` gave, or any ``ray.ObjectRef``. Running time counts from the task's start; one
            that waits for resources or for its arguments is not late. Ray tells the start of an ``ObjectRef`` about a
            second after it; where it tells none, time counts from this call, and the error says so.
        poll_interval: seconds between two looks at what has ended, at most.

    Returns:
        By id: the result, or the exception (`TaskFailed` with outcome ``timed_out`` for what was ended here).
    """
    ours = {name: task for name, task in tasks.items() if isinstance(task, TaskRef)}
    foreign = Foreign({name: task for name, task in tasks.items() if name not in ours}, timeout)
    for task in ours.values():
        task.bound(timeout)
    found = foreign.wait(poll_interval)
    for name, task in ours.items():
        found[name] = task.outcome()
    for name, result in found.items():
        if isinstance(result, Exception):
            log.warning("task.failed", task=name, reason=parse_and_truncate_error(str(result)))
    return {name: found[name] for name in tasks}


def get_elapsed_time(task_ref: Any) -> float | None:
    """Seconds that a task has been running, None when it has not begun (or, for an ``ObjectRef``, nobody knows)."""
    return task_ref.elapsed() if isinstance(task_ref, TaskRef) else elapsed_of(task_ref)


def _episode_timeout(exp_arg: Any, avg_step_timeout: float = 60) -> float:
    """Seconds: ``env_args.max_steps * avg_step_timeout``, ten hours without `max_steps`; and at most
    ``exp_arg.episode_timeout`` where that is set. Raises ValueError if that is NaN.
    """
    steps = getattr(getattr(exp_arg, "env_args", None), "max_steps", None)
    timeout = LONGEST if steps is None else float(steps * avg_step_timeout)
    own = getattr(exp_arg, "episode_timeout", None)
    limit = math.inf if own is None else float(own)
    if math.isnan(limit):
        raise ValueError(
            f"experiment {exp_arg.exp_id!r:.80}: episode_timeout must be a number of seconds, not nan"
        )
    return min(timeout, limit)


def parse_and_truncate_error(error_msg: str) -> str:
    """An error for a table: without the colours of a terminal, its head and its tail within 2,000 characters."""
    clean = re.sub(r"\x1b\[[0-9;]*m", "", error_msg).strip()
    if len(clean) <= ERROR_CHARACTERS:
        return clean
    cut = f"\n... [{len(clean) - ERROR_CHARACTERS} characters and more left out] ...\n"
    half = (ERROR_CHARACTERS - len(cut)) // 2
    return f"{clean[:half]}{cut}{clean[-half:]}"


def _context(exp_arg: Any) -> TaskContext:
    """Of an experiment that runs in this process."""
    return TaskContext(
        run="",
        task=str(exp_arg.exp_id),
        run_id=0,
        attempt=1,
        deadline=None,
        run_folder=Path.cwd(),
        log=logging.getLogger("task"),
    )


def _require_amounts(options: Mapping[str, Any]) -> None:
    """Raises ValueError for what is no amount: a number from 0 up or None; of retries a whole one from -1 up."""
    resources = options.get("resources") or {}
    if not isinstance(resources, Mapping):
        raise ValueError(f"run_exp.options: resources is a dict of amounts, not {resources!r:.80}")  # noqa: TRY004  # as for others
    more = {f"resources[{name!r}]": amount for name, amount in resources.items()}
    for option, value in {**options, **more}.items():
        if option in {"name", "resources"} or value is None:
            continue
        least, kind = (-1, Integral) if option == "max_retries" else (0, Real)
        right = isinstance(value, kind) and not isinstance(value, bool)
        if not right or not least <= value < math.inf:
            raise ValueError(f"run_exp.options: {option} is no amount: {value!r:.80}")


def _resources(options: Mapping[str, Any]) -> dict[str, float]:
    wanted = {
        "cpus": options.get("num_cpus"),
        "gpus": options.get("num_gpus"),
        "memory": options.get("memory"),
        **(options.get("resources") or {}),
    }
    return {name: float(amount) for name, amount in wanted.items() if amount}
