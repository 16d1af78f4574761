"""The folder of a run file as one file: packed by a client on another machine, unpacked by the daemon, which copies it into the run.

Rules:
1. All files below the folder are part of it, also data and hidden files; hidden folders, caches, environments of packages and state
   folders of daemons are not (`is_own`). More than `MOST_BYTES` or `MOST_FILES` is refused: data belong elsewhere.
2. The same files give the same package: its digest is its name, and one that the daemon has is not sent again.
3. What is unpacked is bounded, too, whatever the package says. Files and folders alone: no links, no devices, nothing outside.
4. A package is there for the submits that follow it; `KEPT_SECONDS` after the last one it is removed.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import re
import shutil
import tarfile
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

from governor.errors import TryAgain, UsageError
from governor.locations import JOURNAL

if TYPE_CHECKING:
    from collections.abc import Iterator

PREFIX: Final = "package:"
"""In front of a digest, where a submit names its folder."""
FOLDER: Final = "packages"
MOST_BYTES: Final = 100 << 20
MOST_FILES: Final = 10_000
KEPT_SECONDS: Final = 86_400.0
_LARGEST: Final = MOST_BYTES + MOST_FILES * 2_048
"""Bytes of a package: of files that cannot be compressed, with their names."""
_PART: Final = ".part"
_CLASHES: Final = (FileExistsError, NotADirectoryError)
"""Of two files of a package that have one name, or of which one is in the place of a folder."""


# -- the files of a folder ------------------------------------------------------------------------------------


def is_own(folder: Path) -> bool:
    """Not hidden, no cache, no environment of packages, and no state folder of a daemon. One that must not be read is not."""
    if folder.name.startswith(".") or folder.name in ("__pycache__", "node_modules", "site-packages"):
        return False
    if not os.access(folder, os.R_OK | os.X_OK, effective_ids=True):
        return False
    return not any((folder / mark).exists() for mark in ("pyvenv.cfg", JOURNAL))


def own_files(folder: Path, *, what: str, instead: str) -> list[Path]:
    """All that is part of it; links to folders are among them. Blocks. Raises OSError, UsageError where it is too much for `what`, with
    what can be done `instead`.
    """
    files = [*_files(folder)]
    size = sum(size for _, size in files)
    if size <= MOST_BYTES and len(files) <= MOST_FILES:
        return [path for path, _ in files]
    if len(files) > MOST_FILES:
        much = f"more than {MOST_FILES:,} files"
    else:
        largest, bytes_ = max(files, key=lambda file: file[1])
        much = (
            f"{size:,} bytes, of which {largest.relative_to(folder)} has {bytes_:,}; "
            f"{MOST_BYTES >> 20} MiB ({MOST_BYTES:,} bytes) are allowed"
        )
    raise UsageError(f"{what} the folder {folder}, and that has {much}. {instead}")


def _files(folder: Path) -> Iterator[tuple[Path, int]]:
    """With their sizes; one more than is allowed at most. What goes meanwhile is not among them. Raises OSError."""

    def fail(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError) or error.filename == str(folder):
            raise error

    number = 0
    for place, folders, names in os.walk(folder, onerror=fail):
        own = [Path(place, name) for name in folders if is_own(Path(place, name))]
        linked = [path for path in own if path.is_symlink()]
        folders[:] = [path.name for path in own if not path.is_symlink()]
        for path in (*linked, *(Path(place, name) for name in names)):
            if path.is_file() or path.is_dir():  # no link to nothing, no pipe
                with suppress(FileNotFoundError):
                    yield path, 0 if path.is_dir() else path.stat().st_size
                    number += 1
            if number > MOST_FILES:
                return


# -- the client -----------------------------------------------------------------------------------------------


def pack(folder: Path) -> tuple[IO[bytes], str, int]:
    """A temporary file with the package, its digest and its size. A file that goes meanwhile is not in it. Blocks. Raises UsageError."""
    try:
        return _pack(folder)
    except OSError as error:
        place = error.filename or folder
        raise UsageError(
            f"the folder {folder} can't be sent to the daemon: {place}: {error.strerror or error}"
        ) from error


def _pack(folder: Path) -> tuple[IO[bytes], str, int]:
    files = own_files(
        folder, what="a submit to a daemon on another machine sends", instead="Keep data in another folder"
    )
    if linked := next((path for path in files if path.is_dir()), None):
        raise UsageError(
            f"{linked} is a link to a folder: what is sent has none; put the folder in its place"
        )
    made = tempfile.TemporaryFile()  # noqa: SIM115  # for the caller
    try:
        with (
            gzip.GzipFile(fileobj=made, mode="wb", compresslevel=1, mtime=0, filename="") as packed,
            tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar,
        ):
            for path in sorted(files):
                name = str(path.relative_to(folder))
                with suppress(FileNotFoundError), path.open("rb") as file:
                    tar.addfile(_info(name, os.fstat(file.fileno())), file)
        size = made.tell()
        return made, _digest_of(made), size
    except BaseException:
        made.close()
        raise


def _info(name: str, status: os.stat_result) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size, info.mode = status.st_size, 0o755 if status.st_mode & 0o100 else 0o644
    return info


def _digest_of(file: IO[bytes]) -> str:
    file.seek(0)
    return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]  # any file that can be read


# -- the daemon -----------------------------------------------------------------------------------------------


class PackageStore:
    """The packages in a folder of the daemon. Its methods block."""

    def __init__(self, state_dir: Path) -> None:
        self._folder = state_dir / FOLDER

    def place_of(self, folder: str) -> str:
        """The folder of a submit that names a package with `PREFIX`. Raises UsageError for one that is not there."""
        place = self._folder / _require_digest(folder.removeprefix(PREFIX))
        try:
            os.utime(place)
        except OSError:
            raise UsageError(f"the daemon does not have {folder}: submit the run again") from None
        return str(place)

    def store(self, digest: str, *, size: int, offset: int, data: bytes) -> int:
        """Appends a part; returns how many bytes there are, `size` once it is unpacked. Raises UsageError, TryAgain for a full disk."""
        place = self._folder / _require_digest(digest)
        if not 0 <= size <= _LARGEST:
            raise UsageError(f"a package has at most {_LARGEST >> 20} MiB, and this one {size >> 20}")
        if place.is_dir():
            return size
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            part = place.with_name(place.name + _PART)
            have = part.stat().st_size if part.exists() else 0
            if data and offset == have and have + len(data) <= size:
                with part.open("ab") as file:
                    file.write(data)
                have += len(data)
            if have == size:
                self._unpack(part, place)
                self._remove_old()
        except OSError as error:
            raise TryAgain(f"the package can't be stored: {error.strerror or error}") from error
        return have

    def _unpack(self, part: Path, place: Path) -> None:
        """Raises UsageError, OSError."""
        target = Path(tempfile.mkdtemp(prefix=".unpacked-", dir=self._folder))
        try:
            with part.open("rb") as file:
                if _digest_of(file) != place.name:
                    raise UsageError("the package was damaged on its way: submit the run again")
                file.seek(0)
                _extract(file, target)
            target.rename(place)
        except (tarfile.TarError, EOFError, gzip.BadGzipFile, ValueError, *_CLASHES) as error:
            raise UsageError(f"the package can't be unpacked: {error}") from error
        finally:
            part.unlink(missing_ok=True)
            if target.exists():
                shutil.rmtree(target, ignore_errors=True)

    def _remove_old(self) -> None:
        for path in self._folder.iterdir():
            with suppress(OSError):
                if time.time() - path.stat().st_mtime > KEPT_SECONDS:
                    shutil.rmtree(path) if path.is_dir() else path.unlink()


def _require_digest(digest: str) -> str:
    if not re.fullmatch(r"[0-9a-f]{64}", digest):
        raise UsageError(f"{digest[:80]!r} is no digest of a package")
    return digest


def _extract(file: IO[bytes], target: Path) -> None:
    """Raises UsageError, tarfile.TarError, OSError."""
    size = files = 0
    with tarfile.open(fileobj=file, mode="r|gz") as tar:
        for info in tar:
            size, files = size + info.size, files + 1
            parts = info.name.split("/")
            is_below = not any(part in ("", ".", "..") for part in parts)
            content = tar.extractfile(info) if info.isreg() and is_below else None
            if content is None or size > MOST_BYTES or files > MOST_FILES:
                raise UsageError(
                    f"a package has at most {MOST_FILES:,} files, {MOST_BYTES >> 20} MiB, and nothing but files: {info.name[:200]!r}"
                )
            path = target.joinpath(*parts)
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("xb") as copy:
                shutil.copyfileobj(content, copy)
            path.chmod(0o755 if info.mode & 0o100 else 0o644)
