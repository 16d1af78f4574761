"""The process that builds the environment and the agents of a phase, and plays one step: `python -m governor.cli.trial.build_process`,
started as `supervisor` says.

Rules:
1. Its order is an `Order`. It sends a `Built`: what it did and, where user code failed, why; nothing if user code ends the process
   in a way that Python does not see.
2. It plays as `governor try` does, an episode of one step; user code has a thread that is not the main one, as in a run. A text
   environment is reset and asked for its first prompt; no model is asked.
"""

from __future__ import annotations

import asyncio
import faulthandler
import os
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from governor.episodes import exits
from governor.episodes.rules.evaluation import entropy
from governor.episodes.rules.seeds import episode_seed
from governor.episodes.text.entries import LANGUAGE_MODEL, is_language_model, is_over_http
from governor.errors import ConductorError
from governor.failures import Reason, reason_of, stack_of
from governor.messages import decode_simulation
from governor.processes import supervisor, user_folder

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from governor.messages import StartSimulation


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """`command` is a `StartSimulation`, `folder` the run file's, `variables` its environment variables; `scratch` is a new one. User code has `seconds`."""

    command: bytes
    folder: str
    scratch: str
    seconds: float
    variables: dict[str, str] = {}


class Built(msgspec.Struct, kw_only=True):
    """`spaces` are observation and action by player, "" for the only one. `fault` is a reason, `where` whose code it was; `agent` is
    the one that `where` refers to.
    """

    did: list[str] = []
    spaces: dict[str, tuple[str, str]] = {}
    fault: str = ""
    traceback: str = ""
    where: str = ""
    agent: str = ""


class _Work:
    """What is built and played; its methods run user code."""

    def __init__(self, command: StartSimulation, scratch: Path) -> None:
        self.built = Built(agent=command.agents[0])
        self._command = command
        self._scratch = scratch
        self._where = ""

    @property
    def where(self) -> str:
        return self._where

    def run(self) -> None:
        """Raises what user code raises."""


class _Numbers(_Work):
    def __init__(self, command: StartSimulation, scratch: Path) -> None:
        from governor.episodes.local.foreground import ForegroundEpisode  # noqa: PLC0415  # Arrow: half a second

        super().__init__(command, scratch)
        one_step = msgspec.structs.replace(command, max_steps=1)
        self._episode = ForegroundEpisode(one_step, 0, folder=scratch, show=self._show)

    @property
    def where(self) -> str:
        self.built.agent = self._episode.agent
        return self._where or self._episode.where

    def run(self) -> None:
        from governor.episodes.spaces import summary  # noqa: PLC0415  # as above

        episode, did = self._episode, self.built.did
        try:
            episode.play()
        finally:
            if (columns := episode.columns) is not None:
                slots = columns.players if columns.alone is None else (("", columns.alone),)
                self.built.spaces = {
                    name: (summary(slot.observation), summary(slot.action)) for name, slot in slots
                }
                did.insert(0, "built")
        if episode.learns:
            did.append("learned")
        if episode.reload_states():
            did.append("saved and loaded its state")
        self._where = "environment.close"
        episode.close()
        did.append("closed")

    def _show(self, _: object) -> None:
        if "played a step" not in self.built.did:
            self.built.did.append("played a step")


class _Text(_Work):
    def run(self) -> None:
        from governor.episodes.context import Context  # noqa: PLC0415  # as above
        from governor.episodes.text.environments import child  # noqa: PLC0415  # as above
        from governor.episodes.text.environments.environment import decoded, prompt_of, shown  # noqa: PLC0415  # as above

        command, did = self._command, self.built.did
        self._where = "model"
        asyncio.run(_model(command))
        did.append("made the client of the model, which was not asked")
        made = command.made_environment
        if made is None or is_over_http(made.entry):
            did.append("did not ask the server of the environment")
            return
        self._where = "environment.__init__"
        name = f"environment.{command.environment}"
        context = Context(run_id="check", run_folder=self._scratch, name=name)
        environment = child.make(made.entry, made.params, context)
        did.append("built")
        if callable(getattr(environment, "reset", None)):
            self._where = "environment.reset"
            child.call(environment, "reset", episode_seed(command.seed, *entropy(0, command)))
            did.append("reset")
        self._where = "environment.get_task_prompt"
        value = child.call(environment, "get_task_prompt")
        prompt = prompt_of(decoded(child.encoded(value), where="get_task_prompt"))
        if not isinstance(prompt, list):
            raise ConductorError(f"get_task_prompt: {shown(prompt)} is no list of messages")
        did.append("gave a prompt")
        self._where = "environment.close"
        if callable(getattr(environment, "close", None)):
            child.call(environment, "close")
            did.append("closed")


async def _model(command: StartSimulation) -> None:
    from governor.episodes.text.params import LanguageModelParams  # noqa: PLC0415  # as above
    from governor.episodes.text.phase import make_model  # noqa: PLC0415  # half a second

    agent = command.made_agents[0]
    settings = LanguageModelParams.model_validate(agent.params)
    await make_model(agent.entry.removeprefix(LANGUAGE_MODEL), settings, workers=1).aclose()


def main() -> None:
    """Does the work of the order, and exits without Python's clean-up, which threads of user code could delay."""
    answers, data = supervisor.enter()
    order = msgspec.msgpack.decode(data, type=Order)
    faulthandler.enable(all_threads=False)
    command = decode_simulation(order.command)
    user_folder.enter(order.folder, order.variables)
    kind = _Text if is_language_model(command.made_agents[0].entry) else _Numbers
    work = kind(command, Path(order.scratch))
    exits.announce(lambda reason: _send(answers, work, reason))
    thread = threading.Thread(target=_run, args=(work,), name="build", daemon=True)
    thread.start()
    thread.join(order.seconds)
    if thread.is_alive():
        late = f"{work.where or 'the import'} does not end within {order.seconds:g} s"
        _send(answers, work, stack_of(thread.ident or 0, late))
    else:
        _send(answers, work, None)
    _leave()


def _run(work: _Work) -> None:
    exits.set_description(lambda: work.where or "the import")
    try:
        work.run()
    except BaseException as error:  # noqa: BLE001  # user code: whatever it raises is the verdict
        reason = reason_of(error)
        where = work.where
        named = isinstance(error, ConductorError) or not where
        fault = reason if named else reason.within(where)
        work.built.fault, work.built.traceback, work.built.where = str(fault), reason.traceback, where


def _send(answers: Connection, work: _Work, reason: Reason | None) -> None:
    if reason is not None:
        work.built.fault, work.built.traceback, work.built.where = str(reason), reason.traceback, work.where
    answers.send_bytes(msgspec.msgpack.encode(work.built))


def _leave() -> Any:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
