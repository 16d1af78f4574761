"""The pipeline of a coordinator: it makes metrics of the payloads of train batches, and may store them on the way.

It is an async function, or an object with a life of its own, as Trinity-RFT's `ExperiencePipeline` is.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping


class PipelineFunction(Protocol):
    """Makes metrics of payloads. An exception leaves the batch as it was. It is cancelled when its batch is aborted."""

    async def __call__(self, payloads: list[bytes]) -> Mapping[str, Any] | None: ...


class PipelineObject(Protocol):
    """The same with a beginning and an end: `prepare` and `close` are called once by those of the coordinator. For a
    coordinator in an actor it is sent there before `prepare`, so it can be pickled then.
    """

    async def prepare(self) -> None: ...

    async def process_serialized_chunks(self, exp_chunks: list[bytes]) -> Mapping[str, Any] | None: ...

    async def close(self) -> None: ...


Pipeline: TypeAlias = PipelineFunction | PipelineObject


def is_object(pipeline: Pipeline | None) -> bool:
    """Whether it is one with a life of its own."""
    return hasattr(pipeline, "process_serialized_chunks")


def check(pipeline: Pipeline | None) -> None:
    """Raises TypeError for what is no pipeline."""
    if not (pipeline is None or is_object(pipeline) or callable(pipeline)):
        raise TypeError(
            "a pipeline must be an async function of a list of payloads, or an object with prepare, "
            f"process_serialized_chunks and close, not {type(pipeline).__name__}"
        )


async def prepare(pipeline: Pipeline | None) -> None:
    """Raises what it raises."""
    await _call(pipeline, "prepare")


async def close(pipeline: Pipeline | None) -> None:
    """Raises what it raises."""
    await _call(pipeline, "close")


async def _call(pipeline: Pipeline | None, name: str) -> None:
    method = getattr(pipeline, name, None) if is_object(pipeline) else None
    if method is not None:
        await _awaitable(method(), name)


async def process(pipeline: Pipeline, payloads: list[bytes]) -> dict[str, Any]:
    """Its metrics. Raises what it raises, and TypeError when it is not async."""
    name = "process_serialized_chunks"
    if is_object(pipeline):
        returned = getattr(pipeline, name)(payloads)
    else:
        function: Any = pipeline
        returned, name = function(payloads), getattr(function, "__name__", type(function).__name__)
    return dict(await _awaitable(returned, name) or {})


def _awaitable(returned: Any, name: str) -> Awaitable[Any]:
    if not inspect.isawaitable(returned):
        raise TypeError(
            f"the pipeline's {name} must be async (async def), but returned {type(returned).__name__}"
        )
    return returned
