"""The files of a run, for clients on other machines: which there are, and their bytes in pieces."""

from __future__ import annotations

import msgspec

from governor.messages.base import Message

PIECE_BYTES = 1 << 20


class ListFiles(Message, frozen=True):
    """The files of the run `uid`, in the order of their paths: those behind the path `after`. Answered by `FileList`."""

    uid: str
    after: str = ""


class FileEntry(msgspec.Struct, frozen=True, kw_only=True):
    """`path` is below the run's folder; `size` in bytes; `changed` in nanoseconds since 1970. `number` tells a file from another one
    that has taken its place; a later one may have it again.
    """

    path: str
    size: int
    changed: int
    number: int


class FileList(Message, frozen=True):
    """`uid` is the whole id, `folder` the run's on the daemon's machine. If there are `more` files, they go on behind the last one's path."""

    uid: str
    folder: str
    files: tuple[FileEntry, ...]
    more: bool = False


class ReadFile(Message, frozen=True):
    """At most `PIECE_BYTES` of the file at `path` from `offset` on. Answered by `FilePiece`."""

    uid: str
    path: str
    offset: int = 0


class StorePackage(Message, frozen=True):
    """A part of the package with this SHA-256 `digest` and `size` in bytes, from `offset` on; without `data` only a question. Answered by
    `PackageStored`.
    """

    digest: str
    size: int
    offset: int = 0
    data: bytes = b""


class PackageStored(Message, frozen=True):
    """So many bytes are there; all of them: a submit can name it as its folder."""

    bytes: int


class FilePiece(Message, frozen=True):
    """`data` is empty at the end of the file. `number` and `changed` as of `FileEntry`."""

    data: bytes
    number: int
    changed: int
