"""The log as entries of systemd's journal; a datagram socket stands in for journald."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import socket
import subprocess
import sys
import time

import pytest

from governor import journald
from tests.support.journal_socket import JournalSocket, parsed

ENDED = {
    "event": "run.ended",
    "level": "error",
    "run": "r1",
    "run_name": "mine",
    "outcome": "failed",
    "reason": "phase a: 1 ended badly",
    "stuck": [],
    "exit_code": 3,
    "timestamp": "2026-01-01T00:00:00Z",
}


@pytest.fixture
def journal(tmp_path):
    with JournalSocket(tmp_path / "socket") as receiver:
        yield receiver


def test_an_entry_has_the_fields_by_which_operators_ask(journal):
    assert journald.Journal(journal.path).send(ENDED)
    assert journal.entry() == {
        "MESSAGE": "run.ended run=r1 run_name=mine outcome=failed exit_code=3: phase a: 1 ended badly",
        "PRIORITY": "3",
        "SYSLOG_IDENTIFIER": "run-governor",
        "MESSAGE_ID": journald.MESSAGE_IDS["run.ended", "failed"],
        "EVENT": "run.ended",
        "RUN": "r1",
        "RUN_NAME": "mine",
        "OUTCOME": "failed",
        "REASON": "phase a: 1 ended badly",
        "GOVERNOR_STUCK": "[]",
        "GOVERNOR_EXIT_CODE": "3",
    }


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ({"event": "run.transition", "target": "running"}, ("run.transition", "running")),
        ({"event": "task.ended", "outcome": "timed_out"}, ("task.ended", "timed_out")),
        ({"event": "conductor.exited", "outcome": "strange"}, ("conductor.exited", "")),
        ({"event": "somebody.else"}, None),
    ],
)
def test_each_kind_of_event_has_its_id(line, kind):
    assert journald.message_id(line["event"], line) == (journald.MESSAGE_IDS[kind] if kind else None)


def test_no_id_is_given_twice_and_each_is_128_bits():
    ids = list(journald.MESSAGE_IDS.values())
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch("[0-9a-f]{32}", each) for each in ids)


def test_names_of_fields_are_those_that_journald_takes():
    fields = journald.fields_of({"event": "x", "_odd-key.é": 1, "k" * 100: 2, "nested": {"a": [1]}})
    assert all(re.fullmatch("[A-Z][A-Z0-9_]{0,63}", name) for name in fields)
    assert fields["GOVERNOR_NESTED"] == '{"a": [1]}'


def test_line_breaks_are_framed_and_cannot_add_fields(journal):
    sent = journald.Journal(journal.path)
    sent.send(
        {"event": "task.ended", "level": "warning", "reason": "bad\nPRIORITY=0\nRUN=other", "run": "r1"}
    )
    entry = journal.entry()
    assert (entry["PRIORITY"], entry["RUN"]) == ("4", "r1")
    assert entry["REASON"] == "bad\nPRIORITY=0\nRUN=other"


def test_text_of_users_reaches_no_terminal_as_it_is(journal):
    journald.Journal(journal.path).send({"event": "x", "reason": "\x1b[31mred\x07\x00 \udcff é"})
    assert journal.entry()["MESSAGE"] == "x: \\x1b[31mred\\x07\\x00 \\udcff é"


def test_an_entry_larger_than_a_datagram_goes_in_a_sealed_file(journal):
    sent = journald.Journal(journal.path)
    sent._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    assert sent.send({"event": "x", "exception": "line\n" * 20_000})
    entry = journal.entry()
    assert entry["MESSAGE"] == "x\n" + "line\n" * 20_000
    assert journal.seals == fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


def test_values_are_cut_with_notice():
    value = parsed(journald.serialized({"REASON": "é" * 100_000}))["REASON"]
    assert value.endswith(" ... (200000 bytes)")
    assert len(value) < 70_000


def test_a_journal_that_is_away_or_takes_nothing_is_not_waited_for(tmp_path):
    away = journald.Journal(str(tmp_path / "nobody"))
    assert not away.send({"event": "x"})
    with JournalSocket(tmp_path / "full") as full:
        sent = journald.Journal(full.path)
        begun = time.monotonic()
        taken = sum(sent.send({"event": "x"}) for _ in range(2000))
        assert time.monotonic() - begun < 5
        assert 0 < taken < 2000
        assert sent.lost == 2000 - taken
        assert len(full.entries()) == taken
        assert sent.send({"event": "again"})


PROGRAM = """
import logging, sys, warnings, threading
from governor import journald, logs
journald.SOCKET = sys.argv[1]
logs.configure(log_format=logs.choose_format(), level="info", run="r1")
logs.capture_strays(logs.choose_format())
log = logs.get_logger()
log.debug("not.shown")
log.warning("task.ended", task="fit", outcome="crashed")
logging.getLogger("somebody.else").error("their words", extra={"data": {"service": "echo"}})
warnings.warn("old ways")
print("printed")
sys.stderr.write("half a ")
sys.stderr.write("line\\nand more\\n")
try:
    secret = "swordfish"
    raise ValueError("out of order")
except ValueError:
    log.exception("governor.crashed")
threading.Thread(target=lambda: 1 / 0, name="counting").start()
"""
EXPECTED = [
    ("task.ended", "4"),
    ("their words", "3"),
    ("py.warnings", "4"),
    ("output.raw", "4"),
    ("output.raw", "4"),
    ("output.raw", "4"),
    ("governor.crashed", "3"),
    ("thread.failed", "3"),
]


def run_program(journal_path, stderr):
    found = os.fstat(stderr)
    environ = {**os.environ, "JOURNAL_STREAM": f"{found.st_dev}:{found.st_ino}"}
    command = [sys.executable, "-c", PROGRAM, str(journal_path)]
    subprocess.run(command, stdout=stderr, stderr=stderr, env=environ, check=True, timeout=60)


def test_below_systemd_all_lines_of_a_process_go_to_the_journal(journal, tmp_path):
    with (tmp_path / "stderr").open("wb") as stderr:
        run_program(journal.path, stderr.fileno())
    assert (tmp_path / "stderr").read_bytes() == b""
    entries = journal.entries()
    assert all(entry["RUN"] == "r1" and entry["SYSLOG_IDENTIFIER"] == "run-governor" for entry in entries)
    kinds = [entry.get("GOVERNOR_LOGGER", entry["EVENT"]) for entry in entries]
    kinds[1] = entries[1]["EVENT"]
    assert list(zip(kinds, (entry["PRIORITY"] for entry in entries), strict=True)) == EXPECTED
    assert entries[1]["GOVERNOR_SERVICE"] == "echo"
    assert "old ways" in entries[2]["MESSAGE"]
    assert [entry["GOVERNOR_TEXT"] for entry in entries[3:6]] == ["printed", "half a line", "and more"]
    assert "ValueError: out of order" in entries[6]["MESSAGE"]
    assert not any("swordfish" in value.replace('secret = "swordfish"', "") for value in entries[6].values())
    assert "ZeroDivisionError" in entries[7]["MESSAGE"]


@pytest.mark.parametrize("full", [False, True])
def test_without_a_journal_the_lines_are_json_on_standard_error(tmp_path, full):
    """Below systemd that is a socket too, and a journald that hangs does not read it: lines are lost then."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        if full:
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
            theirs.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while theirs.send(b"x"):
                    pass
            theirs.setblocking(True)
        run_program(tmp_path / "nobody", theirs.fileno())
        theirs.close()
        data = b"".join(iter(lambda: ours.recv(1 << 16), b""))
    lines = [] if full else [json.loads(line) for line in data.splitlines()]
    assert [line["level"] for line in lines] == (
        [] if full else ["warning", "error"] + ["warning"] * 4 + ["error"] * 2
    )


def test_another_stream_is_not_the_journal(tmp_path):
    with (tmp_path / "file").open("wb") as file:
        found = os.fstat(file.fileno())
        here = f"{found.st_dev}:{found.st_ino}"
        assert journald.is_journal(file.fileno(), {"JOURNAL_STREAM": here})
        for other in ("", "1:2", "x:y", here + "0"):
            assert not journald.is_journal(file.fileno(), {"JOURNAL_STREAM": other})
    assert not journald.is_journal(10_000, {"JOURNAL_STREAM": here})
