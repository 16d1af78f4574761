"""What users of AIEvoBox bring: a pool and a data manager after its protocols, and environments in process."""

from __future__ import annotations

import asyncio

from governor.episodes import ActorHandle, SessionContext
from tests.support.language_models.text_stage import SECONDS, Parrot


class Pool:
    """A user's, after the protocol of AIEvoBox; with `error` it raises in `acquire`."""

    pool_size = 2

    def __init__(self, *handles, error=""):
        self.left, self.error, self.returned = list(handles), error, []

    async def start(self):
        pass

    async def acquire(self):
        if self.error:
            raise RuntimeError(self.error)
        return self.left.pop(0) if self.left else None

    async def done(self, actor):
        self.returned.append(actor)

    async def aclose(self):
        pass


class Summing:
    """AIEvoBox's data manager in short: positional names, defaults, ``**more``."""

    def __init__(self, worth=1.0):
        self.worth, self.rows, self.more = worth, [], []

    async def create_session(self, env_id, env_name, llm_model, group_id="", **more):
        self.more.append(more)
        return SessionContext(f"s-{env_id}", env_id, env_name, llm_model, group_id)

    async def record_step(self, session, step_id, messages, response, *, step_reward, env_state=None, **more):
        session.total_reward += self.worth * step_reward
        self.rows.append((step_id, env_state))
        self.more.append(set(more))


def local(environment, number="1"):
    return ActorHandle("own", number, "g", "inproc", None, environment)


async def play_local(stage, *environments, **more):
    """The results and records of environments that are played one after the other."""
    handles = [local(environment, str(number)) for number, environment in enumerate(environments)]
    interactor = stage.interactor(
        pool=Pool(*handles), **{"chat_model": Parrot(), "max_workers": 1, "data_manager": Summing(), **more}
    )
    result = await asyncio.wait_for(interactor.run_all_environments(), SECONDS)
    return interactor, result
