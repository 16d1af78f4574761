"""What goes from a scheduler's user to the engine and back: settings, tasks and models, and results."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec

from governor.messages import TaskSpec
from governor.tasks.api import DynamicTimeout, OverRollout, SchedulerConfig
from governor.tasks.trinity.statistics import summarise_tasks
from governor.tasks.trinity.views import CompletedTaskResult

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from governor.tasks.api import BatchId, Task
    from governor.tasks.pickle_store import NamedTasks
    from governor.tasks.trinity.views import Order, TaskWrapper


_S = TypeVar("_S")
_T = TypeVar("_T")


class TrinityConfig(Protocol):
    """Trinity-RFT's own Config, as far as it is read here."""

    @property
    def explorer(self) -> Any: ...


def config_of(config: SchedulerConfig | TrinityConfig | None) -> SchedulerConfig:
    """The settings of a scheduler: those of Trinity-RFT's Config that have the names of ours are taken, others are ours.

    Raises TypeError for another kind of object, and ValueError as `SchedulerConfig`.
    """
    if config is None:
        return SchedulerConfig()
    if isinstance(config, SchedulerConfig):
        return config
    explorer = getattr(config, "explorer", None)
    if explorer is None:
        raise TypeError(
            f"config must be a SchedulerConfig, or Trinity-RFT's Config with its `explorer`, not {type(config).__name__}"
        )
    more: dict[str, Any] = {
        name: _taken(kind, source)
        for name, kind in (("over_rollout", OverRollout), ("dynamic_timeout", DynamicTimeout))
        if (source := getattr(explorer, name, None)) is not None
    }
    stats = getattr(getattr(config, "monitor", None), "detailed_stats", False)
    return _taken(SchedulerConfig, explorer, detailed_stats=stats, **more)


def _taken(kind: type[_S], source: Any, **more: Any) -> _S:
    names = [field.name for field in fields(kind)]  # type: ignore[arg-type]  # dataclasses
    return kind(**{name: getattr(source, name) for name in names if hasattr(source, name)} | more)


def engines_of(config: SchedulerConfig | TrinityConfig | None) -> tuple[list[int], list[list[int]]]:
    """The numbers of the engines that Trinity-RFT's Config has: of its rollout model, and of each auxiliary model."""
    explorer = getattr(config, "explorer", None)
    rollout, *auxiliary = (
        list(range(getattr(model, "engine_num", 0)))
        for model in (
            getattr(explorer, "rollout_model", None),
            *(getattr(explorer, "auxiliary_models", None) or ()),
        )
    )
    return rollout, auxiliary


def listed(name: str, models: Iterable[_T], what: str = "a list of models") -> list[_T]:
    """The models of an argument. Raises TypeError for a single one in place of a list: a text would be a model for each letter."""
    if isinstance(models, str | bytes | Mapping):
        raise TypeError(f"{name} must be {what}, not {type(models).__name__}: {models!r:.80}")
    return list(models)


def check_models(models: Iterable[Any]) -> None:
    """Raises TypeError for one that cannot be sent to a runner."""
    for model in models:
        try:
            msgspec.msgpack.encode(model)
        except (TypeError, ValueError, OverflowError) as error:
            raise TypeError(
                f"a model must be plain data, such as the URL of its endpoint: {type(model).__name__}: {error}"
            ) from None


def specs_of(
    tasks: Sequence[Task], first: int, *, config: SchedulerConfig, named: NamedTasks, first_run: int = 0
) -> list[TaskSpec]:
    """The tasks as the engine takes them; those without an id get their numbers, from `first` on. Runs before `first_run`
    are counted, though they are not theirs.

    Raises:
        TypeError: an id that is no text, or a number that is none.
        ValueError: fewer runs than 1, fewer retries than 0, a negative amount of a resource, no time at all.
    """
    specs: list[TaskSpec] = []
    for number, (task, call, (args, args_key)) in enumerate(
        zip(tasks, named.calls, named.args, strict=True), start=first
    ):
        name = str(number) if task.id is None else task.id
        for text in (name, *task.depends_on):
            if not isinstance(text, str):
                raise TypeError(f"task {name!r}: an id must be a str, not {text!r}")
        _check_number(name, "repeat_times", task.repeat_times, int, least=1)
        retries = config.max_retry_times if task.retries is None else task.retries
        _check_number(name, "retries", retries, int, least=0)
        timeout = config.max_timeout if task.timeout is None else task.timeout
        _check_number(name, "timeout", timeout, int | float, least=0)
        _check_number(name, "priority", task.priority, Integral, least=-math.inf)
        for resource, amount in task.resources.items():
            _check_number(name, f"resources[{resource!r}]", amount, Real, least=0)
        specs.append(
            TaskSpec(
                id=name,
                call=call,
                args=args,
                args_key=args_key,
                depends_on=tuple(task.depends_on),
                repeat=first_run + task.repeat_times,
                timeout=min(timeout, config.max_timeout),
                retries=retries,
                resources={resource: float(amount) for resource, amount in task.resources.items()},
                is_eval=task.is_eval,
                priority=int(task.priority),
            )
        )
    return specs


def _check_number(task: str, name: str, value: Any, kind: Any, *, least: float) -> None:
    if not isinstance(value, kind) or isinstance(value, bool):
        what = (
            "a whole number"
            if kind in {int, Integral}
            else "a number of seconds"
            if name == "timeout"
            else "a number"
        )
        raise TypeError(f"task {task!r}: {name} must be {what}, not {value!r}")
    if not least <= value < math.inf and not (name == "timeout" and value == math.inf):
        raise ValueError(f"task {task!r}: {name} must be {least} or more, not {value!r}")


def models_of(rollout: Sequence[Any], auxiliary: Sequence[Sequence[Any]]) -> list[Any]:
    """What runners get as their model, runner i the one at i mod their number."""
    if not auxiliary:
        return list(rollout)
    return [
        {
            "rollout": rollout[index] if rollout else None,
            "auxiliary": [models[index % len(models)] for models in auxiliary if models],
        }
        for index in range(max(1, len(rollout)))
    ]


def results_of(
    batch_id: BatchId, tasks: Sequence[TaskWrapper], order: Order = "tasks"
) -> list[CompletedTaskResult]:
    """Completed tasks, which come in the order in which they ended, as their user gets them. For a thread: thousands
    take a second.
    """
    if order == "tasks":
        tasks = sorted(tasks, key=lambda task: task.index)
    metrics = summarise_tasks([(task.metrics, task.task.is_eval) for task in tasks])
    return [
        CompletedTaskResult(batch_id, task.task_id, task.status(each), list(task.experience_payloads))
        for task, each in zip(tasks, metrics, strict=True)
    ]
