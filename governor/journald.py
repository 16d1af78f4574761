"""systemd's journal, by its native protocol: a line of the log is an entry with fields, for ``journalctl RUN=...``.

Rules:
1. Nothing here waits. An entry that the journal does not take at once goes to standard error, as JSON.
2. What is too large for a datagram goes in a sealed memory file.
3. A message id stands for one kind of event for ever: it is never given to another kind.
"""

from __future__ import annotations

import array
import contextlib
import errno
import fcntl
import json
import os
import re
import socket
import stat
import struct
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

SOCKET: Final = "/run/systemd/journal/socket"
IDENTIFIER: Final = "run-governor"
PRIORITIES: Final = MappingProxyType(
    {"critical": 2, "error": 3, "exception": 3, "warning": 4, "warn": 4, "info": 6, "debug": 7}
)
FIELDS: Final = MappingProxyType(
    {
        "run": "RUN",
        "run_name": "RUN_NAME",
        "target": "STATE",
        "phase": "PHASE",
        "conductor": "CONDUCTOR",
        "task": "TASK",
        "outcome": "OUTCOME",
        "reason": "REASON",
        "event": "EVENT",
        "node": "NODE",
        "slot": "SLOT",
    }
)
"""The field of each key of a line; any other key's is ``GOVERNOR_<KEY>``."""
MESSAGE_IDS: Final = MappingProxyType(
    {
        ("daemon.ready", ""): "376d7db6497a42c0adae9085236e6692",
        ("daemon.stopping", ""): "9dccbb3856164c3baf51e80f43265f7d",
        ("daemon.drained", ""): "ad8bbe7fcc8e414e94ca93a338032281",
        ("daemon.undrained", ""): "9e22bb19bd0a4838b409fc2129de2847",
        ("daemon.shutdown_requested", ""): "000838bc3d5b4c9387e2be3c3ad1b06c",
        ("daemon.fatal", ""): "83b9e78b688e4dcbb2293a2e9fecedda",
        ("run.accepted", ""): "c067a24e54d6461aaec37ce9355b4c53",
        ("run.transition", "starting"): "fe858a253fba47f3b0778e846a42807a",
        ("run.transition", "running"): "4f9c5140f58c43c38d0fbeb585c2cd40",
        ("run.transition", "finalizing"): "14d733167365423cb9eaad96cb38fd79",
        ("run.transition", "stopping"): "eeeb0586c74942069321f4a5d97a81fb",
        ("run.transition", "pristine"): "bf239eca0afc4431be3d8eef72a744de",
        ("run.ended", "finished"): "a13e6262c7424b57b8b8eb8d3bf3c9b7",
        ("run.ended", "failed"): "03094f9381ab4d328447bdffa3b00fdd",
        ("run.ended", "aborted"): "d600c212c5dc442593bf29f41ebb39c2",
        ("run.interrupted", ""): "232ae59547384041ad0284acded52d1e",
        ("run.abort_requested", ""): "c44621664f7c471fa20a03667336df20",
        ("run.pause_requested", ""): "5fe226f943354201a89f51c1608f4128",
        ("run.continue_requested", ""): "45317417692849b29b19bfd38ed08b49",
        ("run.work_change_requested", ""): "4f74a56697164dd4bf0dbdf469c27740",
        ("run.plan_change_requested", ""): "5ae5d0d6730b4060a739d9f9e83d20d1",
        ("run.damaged", ""): "d20e23b34ad74bfc86ab3f7a257c4f87",
        ("run.code_changed", ""): "17f00435ca2c4ce593afd7817bb20464",
        ("run.stalled", ""): "4b9bb0259efc4d88aaa44a523329ca6c",
        ("run.pruned", ""): "20078460713843378af7acd7b042a910",
        ("phase.started", ""): "23f347cd87f1410eb54d399fb8c3a732",
        ("phase.ended", ""): "b964be31ef444943a03a942cf3fcf014",
        ("phase.failed", ""): "568d843dd05a4b06942beb8f7d67430b",
        ("task.ended", "failed"): "6e2195df9e5742c49210c08a3a955e80",
        ("task.ended", "timed_out"): "6516210ad3744596ad12b5ed5e347b03",
        ("task.ended", "crashed"): "1e1ffaaea92141698382ede5217aa555",
        ("task.ended", "upstream_failed"): "1a7b077d17364821984ce979ec792d1f",
        ("task.attempt_ended", ""): "17b0653cac974186bab0bf832fd91ff0",
        ("episode.attempt_ended", ""): "806788c43eef4e10a000ab4024241e75",
        ("episode.ended", "failed"): "a7098f82bc4a4f06b6d84658ae7c8dee",
        ("episode.ended", "timed_out"): "5abd73557f3648c682d4df76f61df4df",
        ("episode.ended", "crashed"): "4298515c1460440ab5c40804ef76a163",
        ("conductor.exited", ""): "d14e1b933bc14e13a613e39ceb9b142e",
        ("conductor.restarting", ""): "90a0aca8abae4465b4b30b23d544b065",
        ("process.killed", ""): "28bc6537daee4d11becdb151415f34fa",
        ("runner.killed", ""): "3feb0fb6eb404dfab488aac6a241e586",
        ("broker.exited", ""): "373e0290f69a481e9ad70d0cfc5afed5",
        ("ray.lost", ""): "b44102f51db640eb89246312c52857ea",
        ("slot.quarantined", ""): "a549441324154e989a1b2a20e107918a",
    }
)
"""By event and, where it has several, outcome or state; documented in docs/logs.md."""
_SEND_BUFFER: Final = 8 << 20
_SEALS: Final = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
_TOO_LARGE: Final = frozenset({errno.EMSGSIZE, errno.ENOBUFS})
_LENGTH: Final = struct.Struct("<Q")
_VALUE_LIMIT: Final = 64 * 1024
"""Bytes of a field; of the message, which may be a traceback, sixteen times as many."""
_PLAIN: Final = re.compile(r"[^A-Z0-9_]")
_CONTROLS: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_FLAT: Final = ("by", "submitted_by")
"""Mappings whose values are fields, as ``GOVERNOR_BY_UID``."""
_LAST: Final = ("reason", "error", "text", "exception")
"""These stand at the end of a message, since they are long."""


def is_journal(descriptor: int, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether this descriptor is the stream that systemd has connected to its journal (``JOURNAL_STREAM``)."""
    device, _, inode = environ.get("JOURNAL_STREAM", "").partition(":")
    try:
        found = os.fstat(descriptor)
        return (found.st_dev, found.st_ino) == (int(device), int(inode))
    except (OSError, ValueError):
        return False


def message_id(event: str, line: Mapping[str, Any]) -> str | None:
    """The id of this kind of line; None where it has none."""
    kind = str(line.get("outcome") or line.get("target") or "")
    return MESSAGE_IDS.get((event, kind)) or MESSAGE_IDS.get((event, ""))


def fields_of(line: Mapping[str, Any]) -> dict[str, str]:
    """The fields of a line: a mapping with ``event`` and ``level``."""
    event = str(line.get("event", ""))
    fields = {
        "MESSAGE": _message(event, line),
        "PRIORITY": str(PRIORITIES.get(str(line.get("level")), 6)),
        "SYSLOG_IDENTIFIER": IDENTIFIER,
    }
    if (identity := message_id(event, line)) is not None:
        fields["MESSAGE_ID"] = identity
    for key, value in line.items():
        if key in ("level", "timestamp", "exception") or value is None or value == "":
            continue
        if key in _FLAT and isinstance(value, dict):
            fields |= {_name(f"{key}_{part}"): _text(each) for part, each in value.items()}
        else:
            fields[FIELDS.get(key) or _name(key)] = _text(value)
    return fields


def _name(key: str) -> str:
    return f"GOVERNOR_{_PLAIN.sub('_', key.upper())[:50]}"


def serialized(fields: Mapping[str, str]) -> bytes:
    """As the protocol has it: a value with a line break is preceded by its length."""
    parts = []
    for name, value in fields.items():
        data = value.encode("utf-8", "backslashreplace")
        limit = 16 * _VALUE_LIMIT if name == "MESSAGE" else _VALUE_LIMIT
        if len(data) > limit:
            data = data[:limit].decode("utf-8", "ignore").encode() + b" ... (%d bytes)" % len(data)
        key = name.encode()
        parts.append(
            key + b"\n" + _LENGTH.pack(len(data)) + data + b"\n"
            if b"\n" in data
            else key + b"=" + data + b"\n"
        )
    return b"".join(parts)


def printable(text: str) -> str:
    """Without control characters, which would reach the terminal of whoever reads it, or hide the entry there."""
    return _CONTROLS.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


class Journal:
    """The connection of a process to the journal. `lost`: entries that were not taken."""

    def __init__(self, path: str | None = None) -> None:
        self.lost = 0
        self._path = path or SOCKET
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        with contextlib.suppress(OSError):
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)

    def send(self, line: Mapping[str, Any]) -> bool:
        """Whether the journal has taken it. Never waits, raises nothing."""
        data = serialized(fields_of(line))
        try:
            self._socket.sendto(data, self._path)
        except OSError as error:
            # EMSGSIZE: larger than the buffer; ENOBUFS: than the kernel has in one piece
            if not (error.errno in _TOO_LARGE and self._sent_as_file(data)):
                self.lost += 1
                return False
        return True

    def _sent_as_file(self, data: bytes) -> bool:
        try:
            descriptor = os.memfd_create("journal-entry", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        except OSError:
            return False
        try:
            with os.fdopen(os.dup(descriptor), "wb") as file:
                file.write(data)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor]))
            self._socket.sendmsg([], [rights], 0, self._path)
        except OSError:
            return False
        finally:
            os.close(descriptor)
        return True


def written_at_once(descriptor: int, data: bytes) -> bool:
    """Writes to standard error without waiting where that is a socket, as it is below systemd; else as usual. Returns
    whether it was written.
    """
    try:
        if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            return os.write(descriptor, data) == len(data)
        with socket.socket(fileno=os.dup(descriptor)) as stream:
            return stream.send(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL) == len(data)
    except OSError:
        return False


def _message(event: str, line: Mapping[str, Any]) -> str:
    shown = [
        f"{key}={_text(value)}"
        for key, value in line.items()
        if key not in ("event", "level", "timestamp", *_LAST) and value not in (None, "", [], {}, ())
    ]
    message = " ".join([event, *shown])
    for key in _LAST:
        if line.get(key):
            message += ("\n" if key == "exception" else ": ") + _text(line[key])
    return message


def _text(value: object) -> str:
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    return json.dumps(value, default=str, ensure_ascii=False)
