"""The cases of AIEvoBox's LLM and HttpClient, for programs that use them beside an Interactor."""

import inspect
import time

import pytest
from structlog.testing import capture_logs

from governor.episodes import LLM, HttpClient
from governor.episodes.text.base_urls import StaticBaseURLProvider
from governor.episodes.text.chat_model import ChatModel, ModelFault
from governor.episodes.text.environments import http_environment
from governor.episodes.text.environments.http_environment import HTTPEnvironments
from governor.episodes.text.proxies import Proxies
from governor.errors import GovernorError, UsageError
from tests.support.language_models.text_servers import ChatServer, EnvironmentServer

MESSAGES = [{"role": "user", "content": "where to?"}]
SECONDS = 20


@pytest.fixture
async def server():
    async with ChatServer(metadata={"weight_version": "7"}) as served:
        yield served


@pytest.fixture(autouse=True)
def _no_proxies(monkeypatch):
    for name in ("http_proxy", "https_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def llm(server, **more):
    return LLM("key", f"{server.url}/v1/", "m", **{"retry_backoff": 0.0, **more})


def test_names_and_defaults_of_llm():
    parameters = inspect.signature(LLM).parameters
    assert {name: one.default for name, one in parameters.items() if one.default is not one.empty} == {
        "temperature": 1, "llm_proxy": None, "max_retries": 4, "retry_backoff": 2.0, "max_retry_delay": 30.0,
        "retry_jitter_ratio": 0.2, "request_timeout_s": None, "connect_timeout_s": None,
        "sock_read_timeout_s": None, "trust_env": True, "http_client": None,
    }  # fmt: skip
    assert list(parameters)[:3] == ["api_key", "base_url", "model"]


def test_names_and_defaults_of_http_client():
    parameters = inspect.signature(HttpClient).parameters
    assert {name: one.default for name, one in parameters.items()} == {
        "timeout_s": 10.0, "connect_timeout_s": None, "sock_read_timeout_s": None, "trust_env": True,
        "max_connections": 100, "max_keepalive_connections": 50, "ttl_dns_cache_s": None,
    }  # fmt: skip


async def test_generate(server):
    answer = await llm(server, temperature=0.5).generate(MESSAGES)
    assert answer == {"content": "left", "finish_reason": "stop", "weight_version": 7}
    method, path, headers, body = server.requests[0]
    assert (method, path, headers["Authorization"]) == ("POST", "/v1/chat/completions", "Bearer key")
    assert body == {"model": "m", "messages": MESSAGES, "temperature": 0.5}


@pytest.mark.parametrize("trouble", [429, 500, 503, "nothing", "half", "malformed"])
async def test_generate_asks_again_after_what_may_pass(server, trouble):
    server.then(trouble, trouble)
    assert (await llm(server).generate(MESSAGES))["content"] == "left"


async def test_generate_ends_when_its_retries_are_used_up(server):
    server.then(*[503] * 9)
    with pytest.raises(ModelFault, match=r"HTTP 503: .*told 503"):
        await llm(server, max_retries=2).generate(MESSAGES)
    assert len(server.requests) == 3


async def test_generate_without_a_limit_of_retries(server):
    server.then(*[503] * 9)
    assert (await llm(server, max_retries=-1).generate(MESSAGES))["content"] == "left"


async def test_generate_does_not_ask_again_after_a_refusal(server):
    server.then(400)
    with pytest.raises(ModelFault, match="refused: HTTP 400"):
        await llm(server).generate(MESSAGES)
    assert len(server.requests) == 1


async def test_generate_has_its_time(server, monkeypatch):
    monkeypatch.setenv("AIEVOBOX_LLM_TIMEOUT_S", "1")
    server.then("late")
    began = time.monotonic()
    with pytest.raises(ModelFault, match="no answer in time"):
        await llm(server, max_retries=0).generate(MESSAGES)
    assert 1 <= time.monotonic() - began < SECONDS
    assert llm(server, request_timeout_s=0).request_timeout_s == 1.0


async def test_generate_over_a_client_that_is_shared(server):
    client = HttpClient()
    with pytest.raises(UsageError, match="is not started"):
        client.get(server.url)
    await client.start()
    await client.start()
    assert (await llm(server, http_client=client).generate(MESSAGES))["content"] == "left"
    await client.close()
    await client.close()
    await client.start()
    async with client.post(server.url, json=MESSAGES) as response:
        assert response.status == 200
    await client.close()


async def test_generate_may_not_fill_the_memory(server, monkeypatch):
    monkeypatch.setattr(http_environment, "MAX_ANSWER_BYTES", 1000)
    server.then(b" " * 5000)
    with pytest.raises(ModelFault, match="larger than 1000 bytes"):
        await llm(server).generate(MESSAGES)


async def test_generate_of_what_is_no_json(server):
    with pytest.raises(ModelFault, match="the request cannot be made"):
        await llm(server).generate([object()])


# trust_env


async def test_trust_env_sends_everything_over_the_proxy(monkeypatch, server):
    async with EnvironmentServer() as world:
        monkeypatch.setenv("HTTP_PROXY", server.url)
        model = ChatModel(model="m", base_url_provider=StaticBaseURLProvider("http://far.invalid/v1"))
        assert (await model.answer(MESSAGES, session=None)).text == "left"
        await model.aclose()
        assert (await LLM("key", "http://far.invalid/v1", "m").generate(MESSAGES))["content"] == "left"
        assert [path for _, path, _, _ in server.requests] == ["http://far.invalid/v1/chat/completions"] * 2
        monkeypatch.setenv("HTTP_PROXY", world.url)
        connections = HTTPEnvironments()
        lake = connections.environment(base_url="http://far.invalid", env_name="lake", env_id="7")
        assert (await lake.step("a", key="k", timeout=SECONDS)).reward == 1.0
        await connections.aclose()
        assert [path for _, path, _, _ in world.requests] == ["http://far.invalid/lake/7/step"]


async def test_trust_env_no_proxy_has_ranges_of_addresses(monkeypatch, server):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "10.0.0.0/8, 127.0.0.0/8")
    assert (await llm(server).generate(MESSAGES))["content"] == "left"
    model = ChatModel(model="m", base_url_provider=StaticBaseURLProvider(server.url))
    assert (await model.answer(MESSAGES, session=None)).text == "left"
    await model.aclose()


async def test_trust_env_may_be_off(monkeypatch, server):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    assert (await llm(server, trust_env=False).generate(MESSAGES))["content"] == "left"


async def test_llm_proxy_is_taken(server):
    model = LLM("key", "http://far.invalid/v1", "m", llm_proxy=server.url)
    assert (await model.generate(MESSAGES))["content"] == "left"


@pytest.mark.parametrize(
    ("url", "proxy"),
    [
        ("http://far.org/a", "http://p:1"),
        ("https://far.org/a", None),
        ("http://near.org/a", None),
        ("http://x.near.org:80/a", None),
        ("http://10.1.2.3/a", None),
        ("http://11.1.2.3/a", "http://p:1"),
        ("http://[fd00::1]/a", None),
    ],
)
def test_the_proxy_of_an_address(monkeypatch, url, proxy):
    monkeypatch.setenv("HTTP_PROXY", "p:1")
    monkeypatch.setenv("HTTPS_PROXY", "socks5://p:2")
    monkeypatch.setenv("NO_PROXY", "near.org,10.0.0.0/8,fd00::/8,odd/range")
    with capture_logs() as logged:
        assert Proxies.of_environment().of(url) == proxy
    assert [(line["event"], line["variable"], line["kind"]) for line in logged] == [
        ("proxy.ignored", "HTTPS_PROXY", "socks5")
    ]


@pytest.mark.parametrize("address", ["http://h.invalid/v1", "https://h.invalid/v1"])
@pytest.mark.parametrize(
    "proxy", ["http://me:s3cret@{proxy}", "http://me:s3cret@127.0.0.1:port", "http://me:s3cret@"]
)
async def test_no_error_shows_the_password_of_a_proxy(monkeypatch, server, proxy, address):
    proxy = proxy.format(proxy=server.url.removeprefix("http://"))
    server.then(*[407] * 4)
    said = [await failure_of(LLM("key", address, "m", llm_proxy=proxy, max_retries=0).generate(MESSAGES))]
    monkeypatch.setenv("HTTP_PROXY", proxy)
    monkeypatch.setenv("HTTPS_PROXY", proxy)
    said.append(await failure_of(LLM("key", address, "m", max_retries=0).generate(MESSAGES)))
    model = ChatModel(model="m", base_url_provider=StaticBaseURLProvider(address), retries=0)
    said.append(await failure_of(model.answer(MESSAGES, session=None)))
    await model.aclose()
    environments = HTTPEnvironments(retries=0)
    lake = environments.environment(base_url=address, env_name="lake", env_id="1")
    said.append(await failure_of(lake.get_task_prompt(timeout=SECONDS)))
    await environments.aclose()
    known = ("HTTP 407", "ClientHttpProxyError", "the address of the proxy is invalid")
    assert all(any(one in text for one in known) for text in said), said
    assert "s3cret" not in "".join(said)
    assert all(headers["Proxy-Authorization"] == "Basic bWU6czNjcmV0" for _, _, headers, _ in server.requests)


async def failure_of(asking):
    with pytest.raises(GovernorError) as caught:
        await asking
    return str(caught.value)
