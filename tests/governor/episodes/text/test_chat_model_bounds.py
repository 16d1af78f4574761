"""What a server says has bounds: the size of its answers, refusals too, and its numbers."""

import zlib

import pytest

from governor.episodes.text import chat_model
from governor.episodes.text.base_urls import StaticBaseURLProvider
from governor.episodes.text.chat_model import ChatModel, ModelFault
from tests.support.language_models.text_servers import ChatServer, completion

MESSAGES = [{"role": "user", "content": "go"}]
LARGEST = 1 << 20


class Flood(ChatServer):
    """ "flood" answers with `status` and blanks, gzipped or not, until the client has gone; `sent` counts them."""

    status = 200
    packed = False
    sent = 0

    async def _flood(self, request, _):
        from aiohttp import web

        headers = {"Content-Encoding": "gzip"} if self.packed else {}
        response = web.StreamResponse(status=self.status, headers=headers)
        await response.prepare(request)
        blanks, packer = b" " * (1 << 16), zlib.compressobj(wbits=31)
        try:
            while not request.transport.is_closing() and self.sent < 100 * LARGEST:
                data = packer.compress(blanks) + packer.flush(zlib.Z_SYNC_FLUSH) if self.packed else blanks
                await response.write(data)
                self.sent += len(blanks)
        except ConnectionError:
            pass
        return response


@pytest.fixture
async def server(monkeypatch):
    monkeypatch.setattr(chat_model, "MAX_ANSWER_BYTES", LARGEST)
    async with Flood() as made:
        yield made


@pytest.fixture
async def chat(server):
    made = []

    def make(**more):
        provider = StaticBaseURLProvider(f"{server.url}/v1")
        made.append(ChatModel(model="m", base_url_provider=provider, backoff=0.001, **more))
        return made[-1]

    yield make
    for model in made:
        await model.aclose()


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
async def test_an_answer_without_end_is_a_fault_at_once(server, chat, packed):
    server.packed = packed
    server.then("flood")
    with pytest.raises(ModelFault, match=f"the answer is larger than {LARGEST} bytes"):
        await chat().answer(MESSAGES, session=None)
    assert len(server.requests) == 1


async def test_a_refusal_without_end_is_read_no_further_and_asked_again(server, chat):
    server.status = 503
    server.then("flood")
    assert (await chat().answer(MESSAGES, session=None)).text == "left"
    assert server.sent < 50 * LARGEST  # buffers of sockets beside


async def test_the_connection_is_used_again(server, chat):
    model, transports = chat(), set()
    server.respond = lambda request, body, respond=server.respond: (
        transports.add(id(request.transport)),
        respond(request, body),
    )[1]
    for _ in range(3):
        await model.answer(MESSAGES, session=None)
    assert len(transports) == 1


@pytest.mark.parametrize("value", [1 << 63, -(1 << 63) - 1, 10**30])
async def test_a_version_that_cannot_be_on_record_is_none(server, chat, value):
    server.then(completion(weight_version=value), completion(weight_version=(1 << 63) - 1))
    assert (await chat().answer(MESSAGES, session=None)).weight_version is None
    assert (await chat().answer(MESSAGES, session=None)).weight_version == (1 << 63) - 1


async def test_tokens_that_no_answer_can_have_are_not_counted(server, chat):
    server.then({**completion(), "usage": {"prompt_tokens": 1 << 62, "completion_tokens": 2}})
    answer = await chat().answer(MESSAGES, session=None)
    assert (answer.prompt_tokens, answer.completion_tokens) == (0, 2)
