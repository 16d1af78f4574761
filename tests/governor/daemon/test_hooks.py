"""One try to tell a hook, and when the next one is due."""

from __future__ import annotations

import asyncio
import json

import pytest

from governor import config
from governor.daemon.hooks import targets
from governor.daemon.hooks.sender import BACK_OFF, Sender
from governor.journal.journal import Journal
from governor.units.hooks import Hook, Hooks
from tests.support.hook_server import listening

DOCUMENT = {"key": "r1-3-run", "run": "r1", "name": "walk", "hook": "on_end", "outcome": "finished"}


def run(command, folder, *, timeout=20.0):
    return targets.run(command, DOCUMENT, folder=str(folder), timeout=timeout)


async def test_a_program_gets_the_document_and_says_how_it_ended(tmp_path):
    assert await run(["sh", "-c", "cat > got; echo $RUN $RUN_NAME $HOOK $OUTCOME > env"], tmp_path) == ""
    assert json.loads((tmp_path / "got").read_text()) == DOCUMENT
    assert (tmp_path / "env").read_text() == "r1 walk on_end finished\n"
    assert (
        await run(["sh", "-c", "echo first; echo no room >&2; exit 3"], tmp_path)
        == "sh exited with code 3: no room"
    )
    assert await run(["sh", "-c", "kill -9 $$"], tmp_path) == "sh was killed by SIGKILL"
    assert await run(["sh", "-c", "kill -40 $$"], tmp_path) == "sh was killed by signal 40"
    assert await run(["./absent"], tmp_path) == "cannot start ./absent: No such file or directory"
    assert await run(["true"], tmp_path / "gone") == "", "a folder that is gone is no fault of the program"
    flood = await run(["sh", "-c", "yes 0123456789 | head -c 3000000; exit 1"], tmp_path)
    assert len(flood) <= targets.LONGEST


async def test_an_url_must_take_it_and_no_error_tells_the_whole_address():
    async with listening() as server:
        assert await targets.post(server.url, DOCUMENT, timeout=20) == ""
        assert server.got == [DOCUMENT]
        for status, why in [
            (404, "127.0.0.1 answered 404: no room"),
            (302, "127.0.0.1 answered 302: no room"),
        ]:
            server.status = status
            assert await targets.post(server.url, DOCUMENT, timeout=20) == why
        secret = server.url.replace("/hook", "/s3cret")
    for timeout in (20, 1e-6):
        why = await targets.post(secret, DOCUMENT, timeout=timeout)
        assert why.startswith("127.0.0.1 ")
        assert "s3cret" not in why


@pytest.mark.parametrize(
    ("given", "hook"),
    [
        ("https://x.org/a", {"url": "https://x.org/a"}),
        (["a", "b"], {"command": ("a", "b")}),
        ({"url": "http://x", "retries": 0}, {"url": "http://x", "retries": 0}),
    ],
)
def test_a_hook_is_a_text_a_list_or_a_section(given, hook):
    assert Hooks.model_validate({"on_end": given}).on_end == Hook(**hook)
    options = {"state_dir": "/s", "runtime_dir": "/r", "hooks.on_end": given}
    assert config.load(options=options).hooks.on_end == Hook(**hook)


@pytest.mark.parametrize("given", ["ftp://x", [], {}, {"url": "http://x", "command": ["a"]}, 5])
def test_what_is_no_hook_is_refused(given):
    with pytest.raises(ValueError, match="on_end"):
        Hooks.model_validate({"on_end": given})


async def test_a_try_that_fails_is_made_again_later_and_one_that_can_not_be_made_stops_no_other(tmp_path):
    journal = Journal(tmp_path / "governor.db")
    spec = {
        "name": "r",
        "phases": [],
        "hooks": {"on_end": {"url": "http://127.0.0.1:1/x", "retries": 1}, "on_stall": {"odd": 1}},
    }

    def change(tx):
        tx.submit(uid="r1", key=None, name="r", spec=spec, folder=str(tmp_path))
        tx.event("r1", "run.stalled", {})
        tx.event("r1", "run.ended", {})

    await journal.write(change)
    sender = Sender(journal, Hooks())
    serving = asyncio.create_task(sender.serve())
    async with asyncio.timeout(30):
        while [each.tries for each in journal.due_deliveries(9)] != [0, 1]:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    broken, failed = journal.due_deliveries(9)
    assert broken.document["hook"] == "on_stall"
    assert failed.error.startswith("127.0.0.1 can't be reached")
    assert 0 < failed.due_at - failed.document["at"] < BACK_OFF[0] + 30
    serving.cancel()
    await asyncio.wait({serving})
    await journal.close()
