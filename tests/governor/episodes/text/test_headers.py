"""Headers of the user's for environments over HTTP: on each request, and nowhere to be seen."""

import asyncio
import re

import pytest
from aiohttp import web
from click.testing import CliRunner
from structlog.testing import capture_logs

from governor import failures
from governor.cli import cli
from governor.episodes import ActorPool, Interactor, StaticBaseURLProvider, http_endpoints
from governor.episodes.text.environments.http_environment import HTTPEnvironments
from governor.errors import UsageError
from governor.messages import Made
from tests.support.language_models.text_servers import ChatServer, EnvironmentServer
from tests.support.language_models.text_stage import SECONDS, Parrot
from tests.support.language_models.text_world import Notes

SECRET = "Bearer s3cr3t"
HEADERS = {"Authorization": SECRET, "X-Team": "a"}


def sent(server):
    return {(got[2].get("Authorization"), got[2].get("X-Team")) for got in server.requests}


async def test_each_request_of_an_interactor_carries_them_and_nothing_shows_them():
    async with EnvironmentServer() as server:
        server.then(500, 404)
        pool = ActorPool(
            [("walk", "1", "g"), ("walk", "2", "g")], http_endpoints(server.url, headers=HEADERS), pool_size=1
        )
        provider = StaticBaseURLProvider("http://x.invalid")
        interactor = Interactor(
            pool, provider, "k", "m", Notes(), http_retry_backoff_s=0.0, chat_model=Parrot()
        )
        with capture_logs() as caught:
            await asyncio.wait_for(interactor.run_all_environments(), SECONDS)
        assert sent(server) == {(SECRET, "a")}
        assert [one.outcome for one in interactor.episodes] == ["failed", "terminated"]
        steps = [got for got in server.requests if got[0] == "POST"]
        assert len({got[2]["Idempotency-Key"] for got in steps}) == len(steps) == 3
        shown = f"{caught} {pool} {pool._leases} {pool._idle} {interactor.episodes}"
        assert "s3cr3t" not in shown
        await interactor.aclose()
        await pool.aclose()


async def test_a_handle_and_an_environment_do_not_show_them():
    pool = ActorPool([("walk", "1", "g")], http_endpoints("http://x.invalid", headers=HEADERS))
    await pool.start()
    actor = await pool.acquire()
    connections = HTTPEnvironments()
    environment = connections.environment(
        base_url="http://x", env_name="a", env_id="1", headers=actor.headers
    )
    assert actor.headers == HEADERS
    assert "s3cr3t" not in f"{actor} {pool._leases} {environment}"
    await pool.aclose()
    await connections.aclose()


@pytest.mark.parametrize(
    ("headers", "said"),
    [
        ({"No Name": SECRET}, "'No Name' is no name of a header"),
        ({3: SECRET}, "3 is no name of a header"),
        ({"idempotency-KEY": SECRET}, "the header idempotency-KEY is not yours to set"),
        ({"A": f"{SECRET}\r\nB: c"}, "the value of the header A is no text on one line"),
        ({"A": 1234}, "the value of the header A is no text on one line"),
        (SECRET, "headers should be a mapping of names to texts"),
    ],
)
def test_what_no_request_can_carry_is_refused_without_being_shown(headers, said):
    with pytest.raises(UsageError, match=said) as caught:
        http_endpoints("http://x", headers=headers)
    assert not re.search("s3cr3t|1234", str(caught.value))


# in runs


async def test_those_of_a_run_and_of_its_variables(harness, monkeypatch):
    monkeypatch.setenv("GAME_AUTH", SECRET)
    params = {"headers": {"X-Team": "a"}, "headers_env": {"Authorization": "GAME_AUTH"}}
    async with ChatServer() as model, EnvironmentServer() as server:
        records, _ = await harness.play(episodes=2, seconds=SECONDS, **phase(model, server, params))
        assert [record.outcome for record in records] == ["terminated"] * 2
        assert sent(server) == {(SECRET, "a")}
        assert all("X-Team" not in got[2] for got in model.requests)


MODEL_KEY, GAME_KEY = "sk-0123456789abcdef", "gk-fedcba9876543210"


class Echoes:
    """Refuses each request, and says which key it had: as servers do with one that they do not know."""

    async def respond(self, request, body):
        del body
        return web.Response(
            status=403, text=f"incorrect key {request.headers.get('Authorization')}, {GAME_KEY} {'.' * 400}"
        )


class EchoingModel(Echoes, ChatServer):
    pass


class EchoingEnvironments(Echoes, EnvironmentServer):
    pass


@pytest.mark.parametrize("declared", [True, False], ids=["secret of the run", "variable of the daemon"])
@pytest.mark.parametrize("who", ["model", "environment"])
async def test_a_key_that_a_server_sends_back_stands_nowhere(harness, monkeypatch, who, declared):
    monkeypatch.setattr(failures, "_hidden", {})
    monkeypatch.setenv("GAME_AUTH", f"Token key={GAME_KEY}; v=1")
    monkeypatch.setenv("MODEL_KEY", MODEL_KEY)
    monkeypatch.setenv(failures.SECRETS, "GAME_AUTH,MODEL_KEY" if declared else "")
    model_of, server_of = (
        (EchoingModel, EnvironmentServer) if who == "model" else (ChatServer, EchoingEnvironments)
    )
    async with model_of() as model, server_of() as server:
        made = phase(model, server, {"headers_env": {"Authorization": "GAME_AUTH"}}, api_key_env="MODEL_KEY")
        with capture_logs() as lines:
            records, _ = await harness.play(episodes=1, seconds=SECONDS, **made)
    label = "Bearer [secret MODEL_KEY]" if who == "model" else "[secret GAME_AUTH]"
    assert f"HTTP 403: incorrect key {label}, " in records[0].reason
    told = repr((records, lines)).encode() + b"".join(
        path.read_bytes() for path in harness.folder.rglob("*") if path.is_file()
    )
    assert MODEL_KEY[:8].encode() not in told
    assert GAME_KEY[:8].encode() not in told


async def test_a_variable_that_is_not_there_ends_the_part_with_its_name(harness, monkeypatch):
    monkeypatch.delenv("GAME_AUTH", raising=False)
    async with ChatServer() as model, EnvironmentServer() as server:
        made = phase(model, server, {"headers_env": {"Authorization": "GAME_AUTH"}})
        records, end = await harness.play(episodes=2, seconds=SECONDS, **made)
    assert (records, end.end) == ([], "stopped")
    told = "GAME_AUTH, which is to hold the header Authorization, is not set where the run is at work: export it where the daemon"
    assert told in end.first_failure


def phase(model, server, params, **of_model):
    return {
        "transport": "in_process",
        "made_environment": Made(entry=server.url, params=params),
        "made_agents": (Made(entry="openai:m", params={"base_url": model.url, "retries": 0, **of_model}),),
    }


FILE = """\
name: t
conductors:
  environments: {{game: {{entry: "http://127.0.0.1:9", params: {params}}}}}
  agents: {{model: {{entry: "openai:m", params: {{base_url: "http://127.0.0.1:9/v1"}}}}}}
phases:
  - {{name: play, simulate: {{environment: game, agents: [model], episodes: 3, transport: in_process}}}}
"""


@pytest.mark.parametrize(
    ("params", "says"),
    [
        ('{headers: {Authorization: "Bearer s3cr3t"}}', "no faults"),
        ('{headers: "Bearer s3cr3t"}', "params.headers: headers should be a mapping"),
        ("{headers: {Authorization: [s3cr3t]}}", "the value of the header Authorization is no text"),
        ('{headers_env: "Bearer s3cr3t"}', "params.headers_env: headers should be a mapping"),
        (
            '{headers_env: {A: "Bearer s3cr3t"}}',
            "params.headers_env.A: must be the name of an environment variable",
        ),
        (
            "{headers_env: {A: NOT_SET_HERE}}",
            "params.headers_env.A: the environment variable NOT_SET_HERE is not set here: export it",
        ),
    ],
)
def test_the_check_names_what_is_wrong_and_shows_no_value(tmp_path, params, says):
    (tmp_path / "run.yaml").write_text(FILE.format(params=params))
    done = CliRunner().invoke(cli, ["check", str(tmp_path / "run.yaml")], prog_name="governor")
    said = re.sub(r"\s+", " ", done.output)
    assert says in said
    assert "s3cr3t" not in said
