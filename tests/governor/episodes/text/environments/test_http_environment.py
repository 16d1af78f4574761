"""Text environments behind real servers: a prompt is asked for again, a step is never carried out twice."""

import asyncio
import socket

import pytest

from governor.episodes.text.environments import http_environment
from governor.episodes.text.environments.environment import (
    EnvironmentFault,
    EnvironmentHung,
    EnvironmentUnreachable,
)
from governor.episodes.text.environments.http_environment import HTTPEnvironments
from governor.errors import UsageError
from tests.support.language_models.text_servers import EnvironmentServer

SECONDS = 20
SHORT = 0.2


@pytest.fixture
async def server():
    async with EnvironmentServer() as served:
        yield served


@pytest.fixture
async def keyed():
    async with EnvironmentServer(honours_keys=True, length=9) as served:
        yield served


@pytest.fixture
async def connections():
    made = HTTPEnvironments(backoff=0.001)
    yield made
    await made.aclose()


@pytest.fixture
def lake(server, connections):
    return connections.environment(base_url=server.url, env_name="lake", env_id="7")


async def test_an_episode(server, lake):
    assert await lake.get_task_prompt(timeout=SECONDS) == [
        {"role": "system", "content": "play"},
        {"role": "user", "content": "go"},
    ]
    steps = [await lake.step(f"a{n}", key=f"k{n}", timeout=SECONDS) for n in range(3)]
    assert [step.terminated for step in steps] == [False, False, True]
    assert (steps[1].reward, steps[1].truncated, steps[1].info) == (1.0, False, {"step": 2})
    assert server.steps == ["a0", "a1", "a2"]
    method, path, headers, body = server.requests[1]
    assert (method, path, headers["Idempotency-Key"], body) == (
        "POST",
        "/lake/7/step",
        "k0",
        {"action": "a0"},
    )
    assert server.requests[0][:2] == ("GET", "/lake/7/get_task_prompt")
    assert "Idempotency-Key" not in server.requests[0][2]


async def test_only_slashes_of_a_name_are_parts_of_the_address(server, connections):
    odd = connections.environment(base_url=f"{server.url}/base/", env_name="a/b c", env_id="50%/?x=1#é")
    await odd.get_task_prompt(timeout=SECONDS)
    assert server.requests[0][1] == "/base/a/b%20c/50%25%2F%3Fx%3D1%23%C3%A9/get_task_prompt"


@pytest.mark.parametrize("url", ["", "host:8000", "ftp://h", "http://"])
def test_a_bad_address_is_refused(connections, url):
    with pytest.raises(UsageError, match="is no base URL"):
        connections.environment(base_url=url, env_name="lake", env_id="7")


def test_a_name_that_is_no_text_is_refused(connections):
    with pytest.raises(UsageError, match="surrogates not allowed"):
        connections.environment(base_url="http://h", env_name="lake", env_id="\ud800")


@pytest.mark.parametrize(("host", "key"), [("a..b", "k"), ("h", "k\nk")])
async def test_what_no_request_can_carry_is_a_fault(server, connections, host, key):
    url = server.url if host == "h" else f"http://{host}"
    lake = connections.environment(base_url=url, env_name="lake", env_id="7")
    with pytest.raises(EnvironmentFault):
        await lake.step("a", key=key, timeout=SECONDS)
    assert server.requests == []


@pytest.mark.parametrize("values", [{"retries": -1}, {"backoff": -0.1}, {"backoff": float("nan")}])
def test_values_that_make_no_sense_are_refused(values):
    with pytest.raises(UsageError, match="may be negative"):
        HTTPEnvironments(**values)


# -- prompts ------------------------------------------------------------------------------------------------

PASSING = {
    500: "HTTP 500: .*told 500",
    503: "HTTP 503",
    "nothing": "ServerDisconnectedError",
    "half": "ContentLengthError",
    "garbage": "Expected HTTP",
}


@pytest.mark.parametrize("trouble", PASSING)
async def test_a_prompt_is_asked_for_again(server, lake, trouble):
    server.then(trouble, trouble)
    assert len(await lake.get_task_prompt(timeout=SECONDS)) == 2


@pytest.mark.parametrize(("trouble", "said"), PASSING.items())
async def test_but_not_without_end(server, connections, trouble, said):
    lake = connections.environment(base_url=server.url, env_name="lake", env_id="7")
    server.then(*[trouble] * 20)
    with pytest.raises(EnvironmentUnreachable, match=said) as caught:
        await lake.get_task_prompt(timeout=SECONDS)
    assert caught.value.reason.startswith(f"GET {server.url}/lake/7/get_task_prompt: ")
    assert "\n" not in caught.value.reason
    tries = (
        2 if trouble == "nothing" else 1
    )  # a GET whose connection ends without a byte is sent again by aiohttp itself
    assert len(server.requests) == 3 * tries


async def test_the_pauses_before_it_is_asked_for_again_double(server):
    connections = HTTPEnvironments(backoff=0.05, retries=3)
    lake = connections.environment(base_url=server.url, env_name="lake", env_id="7")
    server.then(500, 500, 500)
    began = asyncio.get_running_loop().time()
    assert len(await lake.get_task_prompt(timeout=SECONDS)) == 2
    assert asyncio.get_running_loop().time() - began >= 0.05 + 0.1 + 0.2
    await connections.aclose()


@pytest.mark.parametrize("trouble", ["late", "drip"])
async def test_a_prompt_that_does_not_come(server, lake, trouble):
    server.then(trouble)
    assert len(await lake.get_task_prompt(timeout=SHORT)) == 2
    server.then(*[trouble] * 3)
    with pytest.raises(EnvironmentHung, match=r"no answer within 0\.2 s"):
        await lake.get_task_prompt(timeout=SHORT)
    assert len(server.requests) == 5


FINAL = {
    400: "HTTP 400: .*told 400",
    404: "HTTP 404",
    409: "HTTP 409",
    429: "HTTP 429",
    (307, (("Location", "/elsewhere"),)): "HTTP 307",
    "malformed": "malformed JSON",
    "empty": "malformed JSON",
}


@pytest.mark.parametrize(("trouble", "said"), FINAL.items(), ids=str)
async def test_a_refusal_or_nonsense_is_final_at_once(server, lake, trouble, said):
    server.then(trouble, trouble)
    for call in (lake.get_task_prompt(timeout=SECONDS), lake.step("a", key="k", timeout=SECONDS)):
        with pytest.raises(EnvironmentFault, match=said) as caught:
            await call
        assert type(caught.value) is EnvironmentFault
    assert len(server.requests) == 2


@pytest.mark.parametrize(
    ("name", "number"), [("..", "1"), ("gym/../lake", "1"), ("./lake", "1"), ("lake", "."), ("lake", "../1")]
)
async def test_a_name_that_would_lead_to_another_path_is_refused(server, connections, name, number):
    with pytest.raises(UsageError, match=r"'\.' and '\.\.' are no names"):
        connections.environment(base_url=server.url, env_name=name, env_id=number)


async def test_a_name_with_dots_percents_and_slashes_stays_below_its_base(server, connections):
    base = f"{server.url}/base"
    odd = connections.environment(base_url=base, env_name="/a//.b/%2e%2e/..c", env_id="...%2f/1")
    await odd.get_task_prompt(timeout=SECONDS)
    assert server.requests[-1][1] == "/base//a//.b/%252e%252e/..c/...%252f%2F1/get_task_prompt"


async def test_values_of_the_wrong_shape(server, lake):
    server.then(
        [{"content": 1}], ["go"], b'{"reward": NaN, "terminated": false, "truncated": false}', {"detail": 1}
    )
    for _ in range(2):
        with pytest.raises(EnvironmentFault, match="no mapping with a role"):
            await lake.get_task_prompt(timeout=SECONDS)
    for said in ("the reward is nan", "no mapping with reward"):
        with pytest.raises(EnvironmentFault, match=said):
            await lake.step("a", key="k", timeout=SECONDS)
    server.then([])
    assert await lake.get_task_prompt(timeout=SECONDS) == []


async def test_an_answer_may_not_fill_the_memory(server, lake, monkeypatch):
    monkeypatch.setattr(http_environment, "MAX_ANSWER_BYTES", 1000)
    server.then(b"[" + b" " * 5000 + b"]")
    with pytest.raises(EnvironmentFault, match="larger than 1000 bytes"):
        await lake.get_task_prompt(timeout=SECONDS)


# -- steps --------------------------------------------------------------------------------------------------

AMBIGUOUS = [500, 503, "nothing", "half", "garbage", "late", "drip"]


def patience(trouble):
    return SHORT if trouble in {"late", "drip"} else SECONDS


def kind(trouble):
    return EnvironmentHung if trouble in {"late", "drip"} else EnvironmentUnreachable


@pytest.mark.parametrize("trouble", AMBIGUOUS)
async def test_a_step_that_may_have_arrived_is_not_sent_again(server, lake, trouble):
    server.then(trouble)
    with pytest.raises(kind(trouble), match=r"POST .*/lake/7/step: "):
        await lake.step("a", key="k", timeout=patience(trouble))
    assert server.steps == ["a"]
    assert len(server.requests) == 1


@pytest.mark.parametrize("trouble", AMBIGUOUS)
async def test_it_is_sent_again_where_the_server_has_shown_that_it_honours_keys(keyed, connections, trouble):
    lake = connections.environment(base_url=keyed.url, env_name="lake", env_id="7")
    other = connections.environment(base_url=keyed.url, env_name="lake", env_id="8")
    await other.step("first", key="k0", timeout=SECONDS)
    keyed.then(trouble, trouble)
    step = await lake.step("a", key="k1", timeout=patience(trouble))
    assert step.info == {"step": 1}
    assert keyed.steps == ["first", "a"]
    assert [headers["Idempotency-Key"] for _, _, headers, _ in keyed.requests[1:]] == ["k1"] * 3


async def test_a_server_that_echoes_another_key_does_not_honour_it(server, lake):
    async def echo(order, request, body, obey=server._obey):
        response = await obey(order, request, body)
        response.headers["Idempotency-Key"] = "constant"
        return response

    server._obey = echo
    await lake.step("a", key="k0", timeout=SECONDS)
    server.then(503)
    with pytest.raises(EnvironmentUnreachable):
        await lake.step("b", key="k1", timeout=SECONDS)
    assert len(server.requests) == 2


async def test_a_server_that_is_still_at_the_step_is_asked_again(keyed, connections):
    lake = connections.environment(base_url=keyed.url, env_name="lake", env_id="7")
    await lake.step("a", key="k0", timeout=SECONDS)
    keyed.then("nothing", 409)
    assert (await lake.step("b", key="k1", timeout=SECONDS)).info == {"step": 2}
    assert keyed.steps == ["a", "b"]


async def test_a_conflict_without_a_step_before_is_final(keyed, connections):
    lake = connections.environment(base_url=keyed.url, env_name="lake", env_id="7")
    await lake.step("a", key="k0", timeout=SECONDS)
    keyed.then(409)
    with pytest.raises(EnvironmentFault, match="HTTP 409"):
        await lake.step("b", key="k1", timeout=SECONDS)
    assert len(keyed.requests) == 2


async def test_a_step_that_cannot_have_arrived_is_sent_again(connections):
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        lake = connections.environment(
            base_url=f"http://127.0.0.1:{held.getsockname()[1]}", env_name="lake", env_id="7"
        )
        tries = count_tries(lake)
        with pytest.raises(EnvironmentUnreachable, match="ClientConnectorError"):
            await lake.step("a", key="k", timeout=SECONDS)
        assert len(tries) == 3


def count_tries(lake):
    tries, once = [], lake._once

    async def counted(*args, **more):
        tries.append(args)
        return await once(*args, **more)

    lake._once = counted
    return tries


async def test_hundreds_of_steps_at_once_wait_for_no_connection(server, connections):
    async def play(number):
        lake = connections.environment(base_url=server.url, env_name="lake", env_id=str(number))
        await lake.get_task_prompt(timeout=SECONDS)
        return await lake.step("a", key=f"k{number}", timeout=SECONDS)

    server.then(*["late"] * 150)
    async with asyncio.timeout(SECONDS):
        async with asyncio.TaskGroup() as group:
            blocked = [group.create_task(play(n)) for n in range(150)]
            for _ in range(150):
                await server.arrivals.get()
            assert (await play("free")).info == {"step": 1}
            for each in blocked:
                each.cancel()


async def test_after_the_close_nothing_is_sent(server, connections, lake):
    await lake.get_task_prompt(timeout=SECONDS)
    await lake.aclose()
    await connections.aclose()
    await connections.aclose()
    with pytest.raises(EnvironmentFault, match="are closed"):
        await lake.step("a", key="k", timeout=SECONDS)
    assert len(server.requests) == 1
