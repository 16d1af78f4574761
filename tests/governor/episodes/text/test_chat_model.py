"""The model behind a real server: each way in which it can fail ends in an answer, or in a fault that says why."""

import asyncio
import socket
from types import SimpleNamespace

import pytest

from governor.episodes.text.base_urls import SessionSuffixBaseURLProvider, StaticBaseURLProvider
from governor.episodes.text.chat_model import ChatModel, ModelFault
from governor.errors import UsageError
from governor.failures import reason_of, traceback_of
from tests.support.language_models.text_servers import ChatServer, completion

MESSAGES = [{"role": "system", "content": "play"}, {"role": "user", "content": "go"}]
SESSION = SimpleNamespace(id="s1")


@pytest.fixture
async def server():
    async with ChatServer() as served:
        yield served


@pytest.fixture
async def model(server):
    made = chat(server)
    yield made
    await made.aclose()


def chat(server, **more):
    provider = StaticBaseURLProvider(f"{server.url}/v1")
    return ChatModel(**{"model": "m", "base_url_provider": provider, "backoff": 0.001, **more})


async def test_an_answer_with_its_tokens(server, model):
    answer = await model.answer(MESSAGES, session=SESSION)
    assert (answer.text, answer.finish_reason, answer.weight_version) == ("left", "stop", None)
    assert (answer.prompt_tokens, answer.completion_tokens) == (10, 2)
    await model.answer(MESSAGES, session=SESSION)
    usage = model.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.requests, usage.retries) == (20, 4, 2, 0)
    method, path, headers, body = server.requests[0]
    assert (method, path, headers["Authorization"]) == ("POST", "/v1/chat/completions", "Bearer EMPTY")
    assert body == {"model": "m", "temperature": 0.3, "messages": MESSAGES}


async def test_extra_arguments_go_into_each_request(server):
    model = chat(
        server,
        api_key="k",
        temperature=0.0,
        extra={"max_tokens": 7, "top_k": 3},
    )
    await model.answer(MESSAGES, session=SESSION)
    await model.aclose()
    _, path, headers, body = server.requests[0]
    assert (path, headers["Authorization"]) == ("/v1/chat/completions", "Bearer k")
    assert body == {"model": "m", "temperature": 0.0, "max_tokens": 7, "top_k": 3, "messages": MESSAGES}


async def test_each_session_has_its_own_address_on_one_pool_of_connections(server):
    model = chat(server, base_url_provider=SessionSuffixBaseURLProvider(f"{server.url}/v1/"))
    for name in ("a", "b/c", "a"):
        await model.answer(MESSAGES, session=SimpleNamespace(id=name))
    await model.aclose()
    assert [path for _, path, _, _ in server.requests] == [
        "/v1/a/chat/completions",
        "/v1/b%2Fc/chat/completions",
        "/v1/a/chat/completions",
    ]


async def test_the_query_of_an_address_stays_at_its_end(server):
    for provider in (StaticBaseURLProvider, SessionSuffixBaseURLProvider):
        model = chat(server, base_url_provider=provider(f"{server.url}/v1/?version=1&a=b/"))
        await model.answer(MESSAGES, session=SimpleNamespace(id="s"))
        await model.aclose()
    assert [path for _, path, _, _ in server.requests] == [
        "/v1/chat/completions?version=1&a=b/",
        "/v1/s/chat/completions?version=1&a=b/",
    ]


@pytest.mark.parametrize(
    "url",
    [
        "",
        "host:8000/v1",
        "http://host/v1#x",
        "http://host/v1#",
        "ftp://host/v1",
        "http://",
        "http://host:99999",
        None,
    ],
)
def test_a_bad_base_url_is_refused_at_once(url):
    for provider in (StaticBaseURLProvider, SessionSuffixBaseURLProvider):
        with pytest.raises(UsageError, match="is no base URL"):
            provider(url)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"concurrency": 0}, "concurrency is 0"),
        ({"concurrency": 1001}, "concurrency is 1001"),
        ({"timeout": 0}, "timeout 0"),
        ({"retries": -1}, "retries -1"),
        ({"backoff": float("nan")}, "backoff nan"),
        ({"extra": {"stream": True}}, "leave stream out"),
    ],
)
def test_values_that_make_no_sense_are_refused(values, said):
    with pytest.raises(UsageError, match=said):
        ChatModel(model="m", base_url_provider=StaticBaseURLProvider("http://h/v1"), **values)


@pytest.mark.parametrize("session", [None, SimpleNamespace(), SimpleNamespace(id="")])
async def test_a_session_without_id_has_no_address(server, session):
    model = chat(server, base_url_provider=SessionSuffixBaseURLProvider(server.url))
    with pytest.raises(ModelFault, match="needs a session with an id"):
        await model.answer(MESSAGES, session=session)
    await model.aclose()


async def test_a_provider_that_makes_no_sense_is_a_fault_at_once(server):
    for made in ("h/v1", None, 3):
        model = chat(server, base_url_provider=SimpleNamespace(get_base_url=lambda _, made=made: made))
        with pytest.raises(ModelFault, match="no base URL for the session"):
            await model.answer(MESSAGES, session=SESSION)
        await model.aclose()
    assert server.requests == []


# -- what may pass ------------------------------------------------------------------------------------------

PASSING = {
    408: "HTTP 408: told 408",
    429: "HTTP 429: told 429",
    500: "HTTP 500: told 500",
    503: "HTTP 503: told 503",
    "malformed": "malformed answer: DecodeError",
    "empty": "malformed answer: DecodeError: Input data was truncated",
    "nothing": "transport: ServerDisconnectedError",
    "half": "transport: ContentLengthError",
    "garbage": "transport: ",
    b"<html>busy</html>": "malformed answer",
    b'{"usage": ' + b"[" * 50_000: "malformed answer: RecursionError",
    b'{"choices": []}': "malformed answer: no choices",
    b'{"choices": [{}]}': "missing required field `message`",
    b'{"choices": [{"message": {"content": 3}}]}': "Expected `str | null`, got `int`",
    b'{"choices": [{"message": {"content": "\\ud800"}}]}': "malformed answer",
    b'{"choices": [{"message": {}, "finish_reason": "stop"}]}': "empty answer: a message without content",
    b"null": "malformed answer",
}


@pytest.mark.parametrize("trouble", PASSING, ids=lambda trouble: str(trouble)[:30])
async def test_what_may_pass_is_asked_again(server, model, trouble):
    server.then(trouble, trouble)
    assert (await model.answer(MESSAGES, session=SESSION)).text == "left"
    assert (model.usage.requests, model.usage.retries, model.usage.prompt_tokens) == (3, 2, 10)
    assert len(server.requests) == 3


@pytest.mark.parametrize(("trouble", "said"), PASSING.items(), ids=lambda value: str(value)[:30])
async def test_tries_are_bounded(server, trouble, said):
    model = chat(server, retries=2)
    server.then(*[trouble] * 9)
    with pytest.raises(ModelFault) as caught:
        await model.answer(MESSAGES, session=SESSION)
    assert caught.value.reason.startswith("no answer of the model, asked 3 times: ")
    assert said in caught.value.reason
    assert "\n" not in caught.value.reason
    assert len(server.requests) == model.usage.requests == 3
    assert model.usage.retries == 2
    await model.aclose()


@pytest.mark.parametrize("trouble", ["late", "drip"])
async def test_a_try_has_its_own_time(server, trouble):
    model = chat(server, timeout=0.2, retries=1)
    server.then(trouble)
    assert (await model.answer(MESSAGES, session=SESSION)).text == "left"
    server.then(trouble, trouble)
    with pytest.raises(ModelFault, match=r"asked 2 times: no answer within 0\.2 s"):
        await model.answer(MESSAGES, session=SESSION)
    await model.aclose()


async def test_an_address_without_a_listener():
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        model = ChatModel(
            model="m",
            base_url_provider=StaticBaseURLProvider(f"http://127.0.0.1:{held.getsockname()[1]}"),
            retries=1,
            backoff=0.001,
        )
        with pytest.raises(ModelFault, match="asked 2 times: transport: ConnectionRefusedError") as caught:
            await model.answer(MESSAGES, session=SESSION)
    assert traceback_of(reason_of(caught.value)) == "", "the frames of libraries are nobody's"
    await model.aclose()


async def test_the_pauses_before_it_is_asked_again_double(server):
    model = chat(server, backoff=0.05)
    server.then(500, 500, 500)
    began = asyncio.get_running_loop().time()
    assert (await model.answer(MESSAGES, session=SESSION)).text == "left"
    assert asyncio.get_running_loop().time() - began >= 0.05 + 0.1 + 0.2
    await model.aclose()


async def test_retry_after_is_honoured(server, model):
    server.then((429, {"Retry-After": "0.3"}))
    began = asyncio.get_running_loop().time()
    assert (await model.answer(MESSAGES, session=SESSION)).text == "left"
    assert asyncio.get_running_loop().time() - began >= 0.3


# -- what will not pass -------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 413, 422])
async def test_a_refusal_is_final_at_once(server, model, status):
    server.then(status)
    with pytest.raises(ModelFault, match=f"the model refused: HTTP {status}: told {status}") as caught:
        await model.answer(MESSAGES, session=SESSION)
    assert traceback_of(reason_of(caught.value)) == ""
    assert len(server.requests) == 1


async def test_no_wait_refills_a_quota(server, model, monkeypatch):
    monkeypatch.setattr(server, "_obey", quota)
    with pytest.raises(ModelFault, match="HTTP 429: pay first"):
        await model.answer(MESSAGES, session=SESSION)
    assert len(server.requests) == 1


async def quota(*_):
    from aiohttp import web

    return web.json_response({"error": {"message": "pay first", "code": "insufficient_quota"}}, status=429)


@pytest.mark.parametrize("content", ["\ud800", object(), {1, 2}])
async def test_messages_that_are_no_json_are_a_fault_at_once(server, model, content):
    with pytest.raises(ModelFault, match="the request cannot be made: "):
        await model.answer([{"role": "user", "content": content}], session=SESSION)
    assert server.requests == []


async def test_nothing_is_asked_after_the_close(server, model):
    await model.answer(MESSAGES, session=SESSION)
    await model.aclose()
    await model.aclose()
    with pytest.raises(ModelFault, match="closed"):
        await model.answer(MESSAGES, session=SESSION)


# -- what an answer says ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "text", "reason"),
    [
        ({"text": "le", "finish_reason": "length"}, "le", "length"),
        ({"text": None, "finish_reason": "length"}, "", "length"),
        ({"text": None, "finish_reason": "content_filter"}, "", "content_filter"),
        ({"text": ""}, "", "stop"),
        ({"text": "x", "finish_reason": None}, "x", ""),
    ],
)
async def test_how_an_answer_ended(server, model, said, text, reason):
    server.then(completion(**said))
    answer = await model.answer(MESSAGES, session=SESSION)
    assert (answer.text, answer.finish_reason) == (text, reason)
    assert model.usage.requests == 1


@pytest.mark.parametrize(
    ("fields", "version"),
    [
        ({"weight_version": 3}, 3),
        ({"weight_version": 0, "metadata": {"weight_version": 9}}, 0),
        ({"metadata": {"weight_version": "12"}}, 12),
        ({"metadata": {"weight_version": "default"}}, None),
        ({"weight_version": True}, None),
        ({"weight_version": 2.5, "metadata": ["odd"]}, None),
    ],
)
async def test_the_version_of_the_weights(server, model, fields, version):
    server.then(completion(**fields))
    assert (await model.answer(MESSAGES, session=SESSION)).weight_version == version


async def test_the_version_of_the_weights_in_a_header(server, model):
    server.headers = {"X-Weight-Version": "5"}
    assert (await model.answer(MESSAGES, session=SESSION)).weight_version == 5


@pytest.mark.parametrize("usage", [None, "much", {}, {"prompt_tokens": None, "completion_tokens": -1}])
async def test_tokens_that_are_not_counted_are_none(server, model, usage):
    server.then({**completion(), "usage": usage})
    answer = await model.answer(MESSAGES, session=SESSION)
    assert (answer.prompt_tokens, answer.completion_tokens) == (0, 0)


# -- how many at once ---------------------------------------------------------------------------------------


async def test_requests_at_once_are_bounded():
    hold = asyncio.Event()
    async with ChatServer(hold=hold) as server, asyncio.timeout(20):
        model = chat(server, concurrency=3)
        asked = [asyncio.create_task(model.answer(MESSAGES, session=SESSION)) for _ in range(9)]
        for _ in range(3):
            await server.arrivals.get()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(model.answer(MESSAGES, session=SESSION), 0.3)
        assert server.at_once == 3
        hold.set()
        await asyncio.gather(*asked)
        assert (server.most_at_once, len(server.requests)) == (3, 9)
        await model.aclose()


async def test_a_cancelled_request_gives_its_place_back():
    hold = asyncio.Event()
    async with ChatServer(hold=hold) as server, asyncio.timeout(20):
        model = chat(server, concurrency=1)
        first = asyncio.create_task(model.answer(MESSAGES, session=SESSION))
        await server.arrivals.get()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(model.answer(MESSAGES, session=SESSION), 0.2)
        first.cancel()
        hold.set()
        assert (await model.answer(MESSAGES, session=SESSION)).text == "left"
        await model.aclose()


async def test_a_pause_before_a_retry_holds_no_slot():
    async with ChatServer() as server, asyncio.timeout(20):
        model = chat(server, concurrency=1)
        server.then((429, {"Retry-After": "30"}))
        waiting = asyncio.create_task(model.answer(MESSAGES, session=SESSION))
        await server.arrivals.get()
        assert (await model.answer(MESSAGES, session=SESSION)).text == "left"
        waiting.cancel()
        await model.aclose()
