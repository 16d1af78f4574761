"""One episode of a language model in the caller's process, for a person who looks at it.

Rules:
1. An environment in Python is called in this process and thread: its prints and breakpoints are as in a script, and what it raises
   leaves `play` as it is.
2. Prompts are shown before the model is asked, its answers before the environment's step.
3. Calls of the environment have no deadline; those of the model and of environments over HTTP have their own.
4. The environment is there until `close`: a debugger looks at it after the end.
"""

from __future__ import annotations

import asyncio
import inspect
import signal
import time
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from governor.episodes.context import Context, reports
from governor.episodes.metrics import Reported
from governor.episodes.rules.evaluation import entropy
from governor.episodes.rules.seeds import episode_seed
from governor.episodes.text.actor_pool import ActorHandle
from governor.episodes.text.entries import LANGUAGE_MODEL, is_over_http
from governor.episodes.text.environments import child
from governor.episodes.text.environments.environment import EnvironmentFault, decoded, prompt_of, step_of
from governor.episodes.text.interactor import Interactor
from governor.episodes.text.params import MAX_STEPS, HTTPEnvironmentParams, LanguageModelParams
from governor.episodes.text.phase import headers_of, make_model
from governor.episodes.text.sessions import TextSession
from governor.errors import ConductorError
from governor.messages import EpisodeRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from governor.episodes.text.chat_model import Answer, ChatModel
    from governor.episodes.text.environments.environment import Message, TextStep
    from governor.episodes.text.episode import TextEpisodeRecord
    from governor.messages import StartSimulation

CLOSE_SECONDS: Final = 5.0
"""How long what still runs at the end may take to be cancelled."""


class Show(Protocol):
    """Shows the conversation as it goes on."""

    def message(self, message: Message) -> None: ...

    def step(self, number: int, reward: float) -> None: ...


class ForegroundConversation:
    """One episode of the command's phase."""

    def __init__(self, command: StartSimulation, index: int, *, folder: Path, show: Show) -> None:
        """`folder` is the `run_folder` of a `context`."""
        self.seed = episode_seed(command.seed, *entropy(index, command))
        """That of the run."""
        self.awaits_model = False
        self._is_interrupted = False
        self._command = command
        self._index = index
        self._context = Context(run_id="try", run_folder=folder, name=f"environment.{command.environment}")
        reports.phase = command.name
        reports.bind(lambda: [(index, Reported())])
        self._show = show
        self._environment: _Environment | None = None
        self._loop = asyncio.new_event_loop()  # not asyncio.run, which would hold Ctrl-C back from user code
        self._playing: asyncio.Task[TextEpisodeRecord] | None = None

    def play(self) -> EpisodeRecord:
        """Raises what an environment in Python raises, and ConductorError for what cannot be built, with that as its cause."""
        command = self._command
        made = command.made_environment
        if made is None or not command.made_agents:
            raise ConductorError("the command does not say what its environment and agent are made of")
        if not is_over_http(made.entry):
            self._environment = _Environment(child.make(made.entry, made.params, self._context))
        model = partial(_Model, show=self._show, episode=self)
        playing = _play(command, self._index, self._environment, self._show, model)
        self._playing = self._loop.create_task(playing)
        try:
            record = self._loop.run_until_complete(self._playing)
        except RuntimeError:  # the loop was stopped
            if self._is_interrupted:
                raise KeyboardInterrupt from None
            raise
        if self._environment is not None and self._environment.raised is not None:
            raise self._environment.raised
        return EpisodeRecord(
            index=self._index,
            worker=0,
            seed=self.seed,
            outcome=record.outcome,
            value=record.total_reward,
            steps=record.steps,
            seconds=record.seconds,
            reason=str(record.reason),
            metrics=record.metrics,
        )

    @contextmanager
    def awaiting_model(self) -> Iterator[None]:
        """Ctrl-C stops the loop meanwhile: an exception anywhere in the model's libraries would leave coroutines that nobody awaits."""
        self.awaits_model = True
        if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:  # it is ignored
            yield
        else:
            self._loop.add_signal_handler(signal.SIGINT, self._interrupt)
            try:
                yield
            finally:
                self._loop.remove_signal_handler(signal.SIGINT)
        self.awaits_model = False

    def _interrupt(self) -> None:
        """A second Ctrl-C is Python's own: `close` may take its time."""
        self._loop.remove_signal_handler(signal.SIGINT)
        self._is_interrupted = True
        self._loop.stop()

    def close(self) -> None:
        """Ends what Ctrl-C has left, and closes the environment. Raises what its `close` raises."""
        loop = self._loop
        loop.set_exception_handler(lambda *_: None)  # what is cancelled has no reader
        try:
            if self._playing is not None and not self._playing.done():
                self._cancel([self._playing])
            if self._environment is not None:
                loop.run_until_complete(self._environment.close())
        finally:
            self._cancel(asyncio.all_tasks(loop))
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()

    def _cancel(self, tasks: Iterable[asyncio.Task[Any]]) -> None:
        cancelled = [task for task in tasks if task.cancel()]
        if cancelled:
            self._loop.run_until_complete(asyncio.wait(cancelled, timeout=CLOSE_SECONDS))


async def _play(
    command: StartSimulation,
    index: int,
    environment: _Environment | None,
    show: Show,
    shown: Callable[[ChatModel], _Model],
) -> TextEpisodeRecord:
    made, agent = command.made_environment, command.made_agents[0]
    assert made is not None  # noqa: S101  # `play` has looked
    name = agent.entry.removeprefix(LANGUAGE_MODEL)
    settings = LanguageModelParams.model_validate(agent.params)
    server = HTTPEnvironmentParams.model_validate({} if environment else made.params)
    model = make_model(name, settings, workers=1)
    actor = ActorHandle(
        env_name=server.name or command.environment,
        env_id=server.id_of(index),
        group_id="",
        transport="inproc" if environment else "http",
        base_url=None if environment else made.entry,
        local_env=environment,
        episode=index,
        seed=episode_seed(command.seed, *entropy(index, command)),
        headers=headers_of(server),
    )
    interactor = Interactor(
        _Pool(actor),
        None,  # type: ignore[arg-type]  # only for a model of its own
        "",
        name,
        _Sessions(show),
        max_steps=command.max_steps or MAX_STEPS,
        message_cut=settings.message_cut,
        env_http_timeout_s=server.timeout,
        http_retries=server.retries,
        episode_timeout=None,
        chat_model=shown(model),
    )
    try:
        await interactor.run_all_environments()
    finally:
        await interactor.aclose()
        await model.aclose()
    return interactor.episodes[0]


class _Environment:
    """A user's environment as a `TextEnvironment`; `raised` is what its code has raised."""

    def __init__(self, environment: Any) -> None:
        self.raised: BaseException | None = None
        self._environment = environment

    async def reset(self, *, seed: int, timeout: float) -> None:  # noqa: ARG002, ASYNC109  # rule 3
        if callable(getattr(self._environment, "reset", None)):
            await self._call("reset", seed)

    async def get_task_prompt(self, *, timeout: float) -> Any:  # noqa: ARG002, ASYNC109  # rule 3
        return prompt_of(await self._call("get_task_prompt"))

    async def step(self, action: str, *, key: str, timeout: float) -> TextStep:  # noqa: ARG002, ASYNC109  # rule 3
        return step_of(await self._call("step", action))

    async def aclose(self) -> None:
        """Rule 4."""

    async def close(self) -> None:
        """Raises what its `close` raises."""
        close = getattr(self._environment, "close", None)
        if callable(close) and inspect.isawaitable(closing := close()):
            await closing

    async def _call(self, name: str, *arguments: Any) -> Any:
        """Through JSON, as from a process of its own. An async method runs here, so that its tasks run on between calls."""
        try:
            value = child.begun(self._environment, name, *arguments)
            if inspect.isawaitable(value):
                value = await value
            data = child.encoded(child.shaped(name, value))
        except BaseException as error:
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                raise
            self.raised = error
            raise EnvironmentFault(f"{name}: {type(error).__name__}") from error
        return decoded(data, where=name)


class _Model:
    """Shows what each prompt has behind the last answer, or all of it, and the answer."""

    def __init__(self, model: ChatModel, *, show: Show, episode: ForegroundConversation) -> None:
        self._model = model
        self._show = show
        self._episode = episode
        self._said: Message | None = None

    async def answer(self, messages: list[Message], *, session: Any) -> Answer:
        known = [place for place, message in enumerate(messages) if message == self._said]
        for message in messages[known[-1] + 1 if known else 0 :]:
            self._show.message(message)
        with self._episode.awaiting_model():
            answer = await self._model.answer(messages, session=session)
        self._said = {"role": "assistant", "content": answer.text}
        self._show.message(self._said)
        return answer


class _Sessions:
    """The data manager: nothing is stored."""

    def __init__(self, show: Show) -> None:
        self._show = show

    async def create_session(
        self, *, env_id: str, env_name: str, llm_model: str, group_id: str, episode: int
    ) -> TextSession:
        return TextSession(
            env_name=env_name,
            env_id=env_id,
            group_id=group_id,
            llm_model=llm_model,
            started=time.time_ns() // 1000,
            episode=episode,
        )

    async def record_step(self, *, session: TextSession, step_id: int, step_reward: float, **_: Any) -> None:
        session.total_reward += step_reward
        self._show.step(step_id, step_reward)


class _Pool:
    """One environment, leased once."""

    pool_size = 1

    def __init__(self, actor: ActorHandle) -> None:
        self._actor: ActorHandle | None = actor

    async def start(self) -> None:
        """It is there."""

    async def acquire(self) -> ActorHandle | None:
        actor, self._actor = self._actor, None
        return actor

    async def done(self, actor: ActorHandle) -> None:
        """It is closed at the end."""
