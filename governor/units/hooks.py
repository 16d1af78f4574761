"""Hooks: what is told when something happens to a run, as its run file and the daemon's configuration have it."""

from __future__ import annotations

from typing import Annotated, Any, Self, TypeAlias
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from governor.units.fields import Duration, Words  # noqa: TC001  # pydantic reads them at run time
from governor.units.sections import Section


def _url(value: str) -> str:
    try:
        port = urlsplit(value).port
    except ValueError as error:
        raise ValueError(f"is no URL: {error}") from None
    if port == 0:
        raise ValueError("is no URL that can be reached: nothing listens at port 0")
    return value


class Hook(Section):
    """A command or an URL."""

    command: Annotated[
        Words | None,
        Field(
            description="A program with its arguments. It gets the document on its standard input, and runs in the run file's folder.",
            examples=[["./notify.sh", "lab"]],
        ),
    ] = None
    url: Annotated[
        Annotated[str, Field(pattern=r"^https?://[^\s/]\S*$", max_length=4096), AfterValidator(_url)] | None,
        Field(
            description="The document is posted there, as JSON.", examples=["https://hooks.example.org/runs"]
        ),
    ] = None
    timeout: Annotated[Duration, Field(description="Time for one try.", examples=["10s"])] = 30.0
    retries: Annotated[
        int,
        Field(
            ge=0,
            le=100,
            description="Further tries, after 2 s, 10 s, 1 min, 5 min and every 30 min.",
            examples=[3],
        ),
    ] = 8

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if (self.command is None) == (self.url is None):
            raise ValueError("must have one of 'command' and 'url'")
        return self


def _section(given: Any) -> Any:
    if isinstance(given, str):
        return {"url": given}
    return {"command": given} if isinstance(given, list | tuple) else given


AnyHook: TypeAlias = Annotated[Hook, BeforeValidator(_section, json_schema_input_type=str | list[str] | Hook)]
"""Written as a text where it is an URL, as a list where it is a command."""


class Hooks(Section):
    """What is told of a run, and to whom: an URL, a command as a list, or a section; null: nobody."""

    on_end: Annotated[
        AnyHook | None, Field(description="The run has ended.", examples=["https://hooks.example.org/runs"])
    ] = None
    on_stall: Annotated[
        AnyHook | None,
        Field(description="It has made no progress for `limits.stall_timeout`.", examples=[["./page.sh"]]),
    ] = None
    on_limit: Annotated[
        AnyHook | None, Field(description="One of its `limits` ends it.", examples=[["./page.sh"]])
    ] = None
    on_restart: Annotated[
        AnyHook | None,
        Field(
            description="One of its processes has died, and is replaced if `restart.conductors` allows it.",
            examples=[["./page.sh"]],
        ),
    ] = None
