"""Large arrays beside the messages of a direct channel, in memory that both ends map: a socket copies them twice, page by page.

Rules:
1. A sender has a `Region` for each of its channels, and writes into it anew with each message: it has the answer to the one before, or
   the next request, so the other end has copied what was there.
2. Its memory is a memfd, which the other end opens below /proc: nothing is left when processes are killed. It is sealed, so that it
   cannot shrink under whoever reads it.
3. What does not fit is sent in the message, and the next message has a region that is large enough. Without memory, and where others
   may not open the descriptors of this process, all is in the messages.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from governor.episodes import arrays
from governor.episodes.arrays import WireError

SHARED: Final = 2
"""The msgpack extension type of an array that is in a region, in the form of `arrays`."""
LEAST_BYTES: Final = 16 << 10
"""Smaller arrays are in the message."""
_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_PLACE: Final = struct.Struct("<IIQQQ")
"""Pid and descriptor of the sender, inode of the memory, offset and size of the array."""


class Region:
    """Encodes messages of a channel, for one thread."""

    def __init__(self) -> None:
        self._encode = msgspec.msgpack.Encoder(enc_hook=self._hook).encode
        self._memory: mmap.mmap | None = None
        self._size = self._used = self._needed = 0
        self._descriptor = -1
        self._inode = 0

    def encode(self, message: Any) -> bytes:
        """Raises TypeError."""
        if self._needed > self._size:
            self._make(self._needed)
        self._used = self._needed = 0
        return self._encode(message)

    def close(self) -> None:
        """May be called again."""
        descriptor, self._descriptor = self._descriptor, -1
        self._memory, self._size = None, 0
        with suppress(OSError):  # user code has closed it
            if descriptor >= 0 and os.fstat(descriptor).st_ino == self._inode:
                os.close(descriptor)

    def _make(self, size: int) -> None:
        self.close()
        size = 1 << (size - 1).bit_length()
        try:
            if Path("/proc/self/fd").stat().st_uid != os.geteuid():  # after `setuid` in user code, for one
                raise PermissionError("others cannot open its descriptors")
            self._descriptor = os.memfd_create("arrays", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            self._inode = os.fstat(self._descriptor).st_ino
            os.posix_fallocate(self._descriptor, 0, size)  # without memory a write to a hole were a SIGBUS
            fcntl.fcntl(self._descriptor, fcntl.F_ADD_SEALS, _SEALS)
            self._memory = mmap.mmap(self._descriptor, size)
        except OSError:  # arrays stay in the messages
            self.close()
        self._size = size

    def _hook(self, value: object) -> object:
        if not isinstance(value, np.ndarray) or value.nbytes < LEAST_BYTES:
            return arrays.encode_hook(value)
        header, array = arrays.parts(value)
        size = len(header) + array.nbytes
        self._needed += size
        if self._memory is None or self._used + size > self._size:
            return arrays.encode_hook(value)
        start = self._used
        self._used += size
        begin = start + len(header)
        self._memory[start:begin] = header
        np.frombuffer(self._memory, array.dtype, array.size, begin).reshape(array.shape)[...] = array
        place = _PLACE.pack(os.getpid(), self._descriptor, self._inode, start, size)
        return msgspec.msgpack.Ext(SHARED, place)


class _Mapped(threading.local):
    """The memory of others that this thread reads, by pid, descriptor and inode."""

    def __init__(self) -> None:
        self.regions: dict[tuple[int, int, int], mmap.mmap] = {}


_mapped: Final = _Mapped()


def decode_hook(code: int, data: memoryview) -> object:
    """As `arrays.decode_hook`. Raises WireError."""
    if code != SHARED:
        return arrays.decode_hook(code, data)
    try:
        *key, start, size = _PLACE.unpack(data)
    except struct.error as error:
        raise WireError(f"{len(data)} bytes are no place of an array") from error
    memory = _mapped.regions.get(tuple(key)) or _map(*key)
    if start + size > len(memory):
        raise WireError(f"an array of {size} bytes at {start} is not within {len(memory)} bytes of memory")
    return arrays.unpack(memoryview(memory)[start : start + size])


def _map(pid: int, descriptor: int, inode: int) -> mmap.mmap:
    """Raises WireError. What others have closed is forgotten."""
    _mapped.regions = {key: memory for key, memory in _mapped.regions.items() if _is_open(*key)}
    try:
        opened = os.open(_path(pid, descriptor), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise WireError(f"the memory of process {pid} cannot be opened: {error.strerror}") from error
    try:
        if os.fstat(opened).st_ino != inode or fcntl.fcntl(opened, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
            raise WireError(f"descriptor {descriptor} of process {pid} is no memory of arrays")
        memory = _mapped.regions[pid, descriptor, inode] = mmap.mmap(opened, 0, prot=mmap.PROT_READ)
    except (OSError, ValueError) as error:
        if isinstance(error, WireError):
            raise
        raise WireError(f"the memory of process {pid} cannot be read: {error}") from error
    finally:
        os.close(opened)
    return memory


def _is_open(pid: int, descriptor: int, inode: int) -> bool:
    try:
        return _path(pid, descriptor).stat().st_ino == inode
    except OSError:
        return False


def _path(pid: int, descriptor: int) -> Path:
    return Path(f"/proc/{pid}/fd/{descriptor}")
