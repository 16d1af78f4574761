"""A stand-in for systemd-journald: a datagram socket, and the entries that it was sent."""

from __future__ import annotations

import array
import fcntl
import os
import socket
import struct


class JournalSocket:
    def __init__(self, path):
        self.path = str(path)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(self.path)
        self.socket.settimeout(10)
        self.seals = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def entry(self):
        """The next entry."""
        data, ancillary, _, _ = self.socket.recvmsg(1 << 20, socket.CMSG_SPACE(4))
        for level, kind, content in ancillary:
            assert (level, kind, data) == (socket.SOL_SOCKET, socket.SCM_RIGHTS, b"")
            [descriptor] = array.array("i", content)
            self.seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
            with os.fdopen(descriptor, "rb") as file:
                file.seek(0)
                data = file.read()
        return parsed(data)

    def entries(self):
        """Those that have arrived."""
        self.socket.setblocking(False)
        found = []
        while True:
            try:
                found.append(self.entry())
            except BlockingIOError:
                self.socket.settimeout(10)
                return found


def parsed(data):
    fields = {}
    while data:
        line, _, rest = data.partition(b"\n")
        name, equals, value = line.partition(b"=")
        if not equals:
            (length,) = struct.unpack_from("<Q", rest)
            value, data = rest[8 : 8 + length], rest[8 + length :]
            assert data.startswith(b"\n")
            data = data[1:]
        else:
            data = rest
        assert name.decode() not in fields
        fields[name.decode()] = value.decode()
    return fields
