"""The services of a run file: programs that run beside it."""

from __future__ import annotations

import re
from typing import Annotated, Self, TypeAlias

from pydantic import AfterValidator, Field, model_validator

from governor.units.fields import FilePath, VariableName, Word, Words
from governor.units.sections import Section


def _pattern(value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"is no regular expression: {error}") from None
    return value


Port: TypeAlias = Annotated[int, Field(ge=1, le=65535)]


class ServiceReady(Section):
    """How a service shows that it is ready: one of the keys."""

    http: Annotated[
        Annotated[str, Field(pattern=r"^(/|https?://)\S*$", max_length=4096)] | None,
        Field(
            description="A GET of this URL, or of this path at its port, is answered with a status below 400.",
            examples=["/health"],
        ),
    ] = None
    port: Annotated[Port | None, Field(description="It takes connections at this port.", examples=[8000])] = (
        None
    )
    line: Annotated[
        Annotated[str, Field(min_length=1, max_length=4096), AfterValidator(_pattern)] | None,
        Field(
            description="It has printed a line in which this regular expression is found.",
            examples=["Uvicorn running on"],
        ),
    ] = None

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if (self.http, self.port, self.line).count(None) != 2:
            raise ValueError("must have one of 'http', 'port' and 'line'")
        return self


class ServiceSection(Section):
    """A program that runs beside the run, such as a model server."""

    command: Annotated[
        Words,
        Field(
            description="The program with its arguments. `{port}` stands for its port, and there are `{run}`, `{run_folder}` and `{python}`.",
            examples=[["python", "-m", "http.server", "{port}"]],
        ),
    ]
    cwd: Annotated[
        FilePath | None,
        Field(
            description="Folder that it runs in; a relative path begins at the run file's folder, which null is.",
            examples=["server"],
        ),
    ] = None
    env: Annotated[
        dict[VariableName, Word],
        Field(
            description="Environment variables, beside those of the daemon; `PORT` is its port.",
            examples=[{"VLLM_LOGGING_LEVEL": "WARNING"}],
        ),
    ] = {}
    port: Annotated[
        Port | None,
        Field(
            description="Its port on the loopback interface, `{services.NAME.port}` elsewhere in the run file; null: a free one.",
            examples=[8000],
        ),
    ] = None
    ready: Annotated[
        ServiceReady | None,
        Field(
            description="What shows that it is ready; null: it takes connections at its port.",
            examples=[{"http": "/health"}],
        ),
    ] = None

    @model_validator(mode="after")
    def _has_one_port(self) -> Self:
        waits_for = self.ready.port if self.ready is not None else None
        if self.port is not None and waits_for is not None and self.port != waits_for:
            raise ValueError(f"has 'port: {self.port}', and is ready at 'port: {waits_for}'")
        return self

    @property
    def fixed_port(self) -> int | None:
        """None: a free one is chosen for each run."""
        return self.port or (self.ready.port if self.ready is not None else None)
