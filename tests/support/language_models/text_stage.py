"""Interactors on one `TextWorld`, and stand-ins for environments and models that are not under test."""

from __future__ import annotations

import asyncio
import contextlib

from governor.episodes.text.actor_pool import ActorPool, http_endpoints
from governor.episodes.text.base_urls import StaticBaseURLProvider
from governor.episodes.text.chat_model import Answer
from governor.episodes.text.environments.environment import TextStep
from governor.episodes.text.interactor import Interactor
from tests.support.language_models.text_world import Notes, TextWorld

SECONDS = 30


class Stage:
    """One world, and its interactors, which are closed with it."""

    def __init__(self, world, stack):
        self.world = world
        self._stack = stack
        self.notes = Notes()

    def pool(self, *tasks, **more):
        made = ActorPool(
            [(name, number, "g") for name, number in (task.split("_") for task in tasks)],
            http_endpoints(self.world.url),
            **{"pool_size": 4, **more},
        )
        self._stack.push_async_callback(made.aclose)
        return made

    def interactor(self, *tasks, pool=None, data_manager=None, **more):
        pool = pool or self.pool(*tasks)
        made = Interactor(
            pool,
            StaticBaseURLProvider(self.world.llm),
            "key",
            "model",
            data_manager or self.notes,
            **{"http_retry_backoff_s": 0.0, **more},
        )
        self._stack.push_async_callback(made.aclose)
        return made

    async def play(self, *tasks, **more):
        """Plays tasks. Returns the result, and the record of each episode by its key."""
        interactor = self.interactor(*tasks, **more)
        result = await asyncio.wait_for(interactor.run_all_environments(), SECONDS)
        return result, {episode.key: episode for episode in interactor.episodes}


@contextlib.asynccontextmanager
async def text_stage():
    async with TextWorld() as world, contextlib.AsyncExitStack() as stack:
        yield Stage(world, stack)


class Parrot:
    """A chat model without a network, for tests of other parts."""

    def __init__(self, answer=lambda messages: Answer("go", "stop", 7, 1, 1)):
        self._answer = answer

    async def answer(self, messages, *, session):
        return self._answer(messages)


class Walk:
    """A text environment without a network, of `steps` steps, with an optional fault."""

    def __init__(self, steps=3, fault=None):
        self.steps, self.fault = steps, fault
        self.taken = 0

    async def get_task_prompt(self, *, timeout):  # noqa: ASYNC109 - the protocol's
        return [{"role": "user", "content": "where to?"}]

    async def step(self, action, *, key, timeout):  # noqa: ASYNC109 - the protocol's
        if self.fault:
            raise self.fault
        self.taken += 1
        return TextStep(1.0, self.taken % self.steps == 0, False, {})

    async def aclose(self):
        pass
