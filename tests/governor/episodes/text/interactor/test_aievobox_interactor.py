"""The cases of AIEvoBox's Interactor, by the names of its parts: what its users hand over is taken as there."""

import asyncio
import gc
import json
from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs

import governor.episodes
from governor.episodes import (
    ActorHandle,
    BaseURLProvider,
    EpisodeHandler,
    Interactor,
    NullEpisodeHandler,
    SessionContext,
    SessionSuffixBaseURLProvider,
    StaticBaseURLProvider,
)
from governor.episodes.text.chat_model import Answer
from governor.errors import UsageError
from tests.support.language_models.text_servers import ChatServer, EnvironmentServer
from tests.support.language_models.text_stage import SECONDS, Parrot
from tests.support.language_models.text_world import Notes
from tests.support.language_models.users_of_aievobox import Pool, Summing, play_local
from tests.support.user_code.text_answers import FORMS, Answers, Locked

# the constructor


def test_interactor_takes_its_arguments_by_position():
    handler = NullEpisodeHandler()
    interactor = Interactor(
        Pool(), StaticBaseURLProvider("http://h/v1"), "key", "m", Notes(), 0.3, 1000, 3, 30.0, None, 2, 0.5, True, 120,
        handler,
    )  # fmt: skip
    assert interactor._context.handler is handler
    assert interactor._context.preview == 120


@pytest.mark.parametrize(
    ("max_workers", "workers"), [(None, 2), (0, 1), (-3, 1), ("1", 1), ("64", 2), (1.9, 1)]
)
def test_derive_worker_count(max_workers, workers):
    assert made(max_workers=max_workers).workers == workers


@pytest.mark.parametrize(("pool", "workers"), [(object(), 1), (SimpleNamespace(pool_size="3"), 3)])
def test_derive_worker_count_from_any_pool(pool, workers):
    assert made(pool).workers == workers


def made(pool=None, provider=None, **more):
    provider = provider or StaticBaseURLProvider("http://h/v1")
    return Interactor(pool or Pool(), provider, "key", "m", Notes(), **more)


def test_numbers_may_be_texts_and_are_bounded():
    more = {"temperature": "0.5", "max_steps": "7", "message_cut": "2", "http_retries": "-1"}
    interactor = made(
        **more, env_http_timeout_s="4", http_retry_backoff_s=-1, log_actions_preview_chars=-1, verbose=1
    )
    context = interactor._context
    assert (context.max_steps, context.message_cut, context.environment_timeout) == (7, 2, 4.0)
    assert (interactor._connections.retries.most, context.preview) == (0, 0)


@pytest.mark.parametrize(
    "more", [{"max_workers": "many"}, {"max_steps": None}, {"env_http_timeout_s": float("nan")}]
)
def test_what_is_no_number_is_refused_by_its_name(more):
    with pytest.raises(UsageError, match=f"^{next(iter(more))} is .*: it should be a number$"):
        made(**more)


async def test_max_steps_of_zero_plays_no_step(stage):
    result, episodes = await stage.play("walk_1", max_steps=0)
    assert result == {"walk_1": 0.0}
    assert (episodes["walk_1"].outcome, stage.world.asked) == ("truncated", [])


async def test_verbose_previews_of_answers_are_in_the_log(stage):
    model = Parrot(lambda _: Answer("a long answer", "stop", 7, 1, 1))
    with capture_logs() as logged:
        await play_local(stage, Locked(), chat_model=model, log_actions_preview_chars=6)
        await play_local(stage, Locked(), chat_model=model, verbose=False)
    assert [line["text"] for line in logged if line["event"] == "episode.answer"] == ["a long"] * 3


# resolve_llm_http_settings: how long a model may take

SUFFIX = SessionSuffixBaseURLProvider(base_url_root="http://h/v1")


class OwnSuffix(SessionSuffixBaseURLProvider):
    pass


@pytest.mark.parametrize(
    ("variable", "provider", "argument", "seconds"),
    [
        (None, None, None, 300),
        (None, SUFFIX, None, 900),
        (None, OwnSuffix("http://h"), None, 900),
        ("45.5", None, None, 45.5),
        ("45.5", SUFFIX, None, 45.5),
        ("45.5", SUFFIX, 12, 12),
        (None, None, "12.5", 12.5),
        ("", None, None, 300),
        ("soon", SUFFIX, None, 900),
        ("nan", None, None, 300),
        ("0", None, None, None),
        (None, None, 0, None),
    ],
)
def test_resolve_llm_http_settings(monkeypatch, variable, provider, argument, seconds):
    monkeypatch.delenv("AIEVOBOX_LLM_TIMEOUT_S", raising=False)
    if variable is not None:
        monkeypatch.setenv("AIEVOBOX_LLM_TIMEOUT_S", variable)
    assert made(provider=provider, llm_timeout_s=argument)._own_model._timeout == seconds


def test_a_timeout_in_the_environment_that_is_no_number_is_logged(monkeypatch):
    monkeypatch.setenv("AIEVOBOX_LLM_TIMEOUT_S", "soon")
    with capture_logs() as logged:
        made()
    assert [(line["event"], line["value"], line["seconds"]) for line in logged] == [
        ("llm.timeout_ignored", "soon", 300)
    ]


async def test_a_model_that_answers_late_is_asked_once(stage, monkeypatch):
    stage.world.length = 1
    stage.world.answer_seconds = 0.75
    monkeypatch.setenv("AIEVOBOX_LLM_TIMEOUT_S", "0.2")
    result, _ = await stage.play("walk_1", llm_timeout_s=SECONDS)
    assert (result, len(stage.world.asked)) == ({"walk_1": 1.0}, 1)


async def test_a_model_that_is_too_late_is_named(stage):
    stage.world.gate = lambda body: stage.world.hold.wait()
    _, episodes = await stage.play("walk_1", llm_timeout_s=0.05)
    assert episodes["walk_1"].reason == (
        "model: no answer of the model, asked 5 times: no answer within 0.05 s"
    )


# base_url_provider


def test_session_suffix_base_url_provider_takes_the_session_id():
    session = SimpleNamespace(session_id="abc", id=5)
    assert SUFFIX.get_base_url(session) == "http://h/v1/abc"
    assert SUFFIX.base_url_root == "http://h/v1"
    with pytest.raises(UsageError):
        SUFFIX.get_base_url()


async def test_session_suffix_base_url_provider_asks_under_the_session(stage):
    stage.world.length = 1
    interactor = Interactor(
        stage.pool("walk_1"), SessionSuffixBaseURLProvider(stage.world.llm), "key", "m", Summing()
    )
    assert await interactor.run_all_environments() == {"walk_1": 1.0}
    await interactor.aclose()
    assert stage.world.asked[0][0] == "/v1/s-1/chat/completions"


async def test_a_base_url_provider_of_the_users_own_and_no_key(stage):
    class Own(BaseURLProvider):
        def get_base_url(self, session=None):
            return server.url

    async with ChatServer() as server:
        interactor = Interactor(stage.pool("walk_1"), Own(), None, "m", Notes())
        assert await interactor.run_all_environments() == {"walk_1": 3.0}
        await interactor.aclose()
        assert "Authorization" not in server.requests[0][2]


@pytest.mark.parametrize(
    "name", ["LLM", "HttpClient", "NullEpisodeHandler", "BaseURLProvider", "SessionContext"]
)
def test_names_that_users_import(name):
    assert getattr(governor.episodes, name).__name__ == name
    assert name in governor.episodes.__all__


def test_a_session_context_is_made_as_there():
    session = SessionContext("s", "1", "lake", "m")
    assert (session.session_id, session.group_id, session.job_id, session.total_reward) == ("s", "", "", 0.0)
    assert (session.start_time, session.message_history, session.is_session_completed) == (0.0, [], False)
    session.mine = "kept"  # a plain dataclass there
    assert session.mine == "kept"
    with pytest.raises(TypeError):
        SessionContext(env_id="1")


# normalize_inproc_result


@pytest.mark.parametrize("make", [Answers, Locked], ids=["process", "thread"])
async def test_normalize_inproc_result(stage, make):
    _, result = await play_local(stage, *(make(form) for form in FORMS))
    assert result == {f"own_{number}": 6.0 for number in range(len(FORMS))}


@pytest.mark.parametrize("make", [Answers, Locked], ids=["process", "thread"])
async def test_a_prompt_that_is_none_ends_the_episode_with_the_reward_so_far(stage, make):
    interactor, result = await play_local(stage, make(prompts=2))
    (episode,) = interactor.episodes
    assert result == {"own_0": 3.0}
    assert (episode.outcome, episode.reason) == ("terminated", "the prompt is None, no list of messages")


async def test_normalize_prompts_of_messages_in_a_mapping(stage):
    class Mapping(Locked):
        def get_task_prompt(self):
            messages = super().get_task_prompt()
            return {"messages": messages, "step": self.taken} if self.taken < 2 else {"alice": messages}

    interactor, result = await play_local(stage, Mapping())
    assert result == {"own_0": 3.0}, "one of several agents is not taken over"
    assert interactor.episodes[0].reason.startswith("the prompt is {'alice': ")


async def test_null_episode_handler_takes_the_end_as_there():
    assert await NullEpisodeHandler().on_episode_end("walk", "1", 2.0) is None
    assert await EpisodeHandler().on_episode_end("walk", "1", 2.0, {"steps": 3}) is None


class Writes(EpisodeHandler):
    """Makes the messages of an environment whose prompts are texts."""

    async def handle(self, env_name, env_id, step, prompt):
        return [{"role": "user", "content": prompt}]


async def test_a_handler_may_make_the_messages(stage):
    class Text(Locked):
        def get_task_prompt(self):
            return "where to?"

    _, result = await play_local(stage, Text(), Text(), episode_handler=Writes())
    assert result == {"own_0": 6.0, "own_1": 6.0}
    _, result = await play_local(stage, Text())
    assert result == {"own_0": 0.0}


# run_one_environment


class Raises(EpisodeHandler):
    async def on_episode_end(self, **end):
        raise ValueError("cannot end")


async def test_run_one_environment_on_episode_end_that_raises_is_logged(stage):
    with capture_logs() as logged:
        _, result = await play_local(stage, Locked(), episode_handler=Raises())
    assert result == {"own_0": 6.0}
    assert [line["at"] for line in logged if line["event"] == "episode.end_failed"] == ["handler"]


async def test_run_one_environment_the_total_of_the_session_counts(stage):
    ends = []

    class Ends:
        def on_episode_end(self, *, total_reward, **_):
            ends.append(total_reward)

    interactor, result = await play_local(
        stage, Locked(), data_manager=Summing(worth=10), episode_handler=Ends()
    )
    assert (result, ends, interactor.episodes[0].total_reward) == ({"own_0": 60.0}, [60.0], 60.0)


@pytest.mark.parametrize("total", [None, "much", float("nan")])
async def test_run_one_environment_without_a_total_the_rewards_are_summed(stage, total):
    class Keeps(Summing):
        async def create_session(self, **named):
            return SimpleNamespace(total_reward=total)

        async def record_step(self, **step):
            pass

    _, result = await play_local(stage, Locked(), data_manager=Keeps())
    assert result == {"own_0": 6.0}


async def test_run_one_environment_a_data_manager_with_more_gets_what_the_protocol_names(stage):
    manager = Summing()
    await play_local(stage, Locked(), data_manager=manager)
    assert manager.more == [{}, *[{"terminated", "truncated", "is_trainable"}] * 3]
    assert [json.loads(state) for _, state in manager.rows] == [{"weight_version": 7}] * 3


async def test_url_of_a_name_with_slashes(stage):
    async with EnvironmentServer() as server:
        pool = Pool(ActorHandle("gym/lake", "1", "g", "http", server.url))
        result, _ = await stage.play(pool=pool)
        assert result == {"gym/lake_1": 3.0}
        assert {path for _, path, _, _ in server.requests} == {
            "/gym/lake/1/get_task_prompt",
            "/gym/lake/1/step",
        }


# run_all_environments


async def test_run_all_environments_retrieves_what_acquire_raises(stage):
    unretrieved = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unretrieved.append(context))
    interactor = stage.interactor(pool=Pool(error="no actor"))
    raised = ""
    try:
        await interactor.run_all_environments()
    except RuntimeError as error:  # not `pytest.raises`, which would keep the tasks
        raised = str(error)
    gc.collect()
    assert (raised, unretrieved) == ("no actor", [])


async def test_run_all_environments_gives_back_although_a_pool_cannot_quarantine(stage):
    class Half(Pool):
        def quarantine(self, actor, reason):
            raise AttributeError("_leases")

    pool = Half(ActorHandle("gone", "1", "g", "http", stage.world.url))
    await stage.play(pool=pool)
    assert [actor.env_name for actor in pool.returned] == ["gone"]
