"""Objects as files below a folder: for development, tests, and a disk that all processes share.

A key's segments are folders, its last one a file. A file appears by a hard link to a finished one,
so it is whole from its first instant and never replaced. A writer that dies leaves only something
in `.unfinished`.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterator, Sequence
from contextlib import aclosing, suppress
from functools import partial
from hashlib import sha256 as new_sha256
from itertools import islice
from pathlib import Path
from string import ascii_lowercase, digits
from typing import BinaryIO, TypeVar
from urllib.parse import unquote

from ledger.domain.events import Ref
from ledger.domain.ids import Micros
from ledger.domain.object_keys import escaping
from ledger.objects.checked_keys import checked_key
from ledger.objects.content import PIECE_BYTES, announced, cut, joined, verified
from ledger.objects.errors import (
    ContentMismatch,
    InvalidKey,
    ObjectConflict,
    ObjectDamaged,
    ObjectNotFound,
    StoreUnavailable,
)
from ledger.objects.store import PAGE_MAX, Listed, Page, checked_limit, checked_prefix
from ledger.objects.threads import Threads

T = TypeVar("T")

THREADS = 4
NAME_BYTES_MAX = 255
"""Of a file's name, on every file system of today."""
LINK_TRIES_MAX = 10
"""Of making a file's folder and the file in it, while others remove the folder as empty."""
UNFINISHED = ".unfinished"
"""No segment of a key: those never begin with a dot on disk."""

# Capital letters too: there are file systems that do not tell A from a.
_file_name = escaping(ascii_lowercase + digits + "-_.@~!+=,")


class FolderStore:
    """`path` is made at the first write. It has no links: the api streams."""

    def __init__(self, path: Path) -> None:
        self._root = path.absolute()
        self._unfinished = self._root / UNFINISHED
        self._threads = Threads(THREADS)

    async def put(
        self, key: str, data: bytes | AsyncIterable[bytes], *, sha256: str, size: int
    ) -> Ref:
        ref = announced(key, size, sha256)
        path = self._path(key)
        file = await self._run(self._begin)
        try:
            async with aclosing(verified(cut(data, PIECE_BYTES), ref, ContentMismatch)) as pieces:
                async for piece in pieces:
                    await self._run(partial(file.write, piece))
            await self._run(lambda: self._finish(file, path, ref))
        finally:
            await self._run(lambda: _discard(file))
        return ref

    async def get(self, ref: Ref) -> bytes:
        return await joined(self.stream(ref))

    def stream(self, ref: Ref) -> AsyncGenerator[bytes, None]:
        return verified(self._pieces(ref, self._path(ref.key)), ref, ObjectDamaged)

    async def delete(self, key: str) -> None:
        await self.delete_many([key])

    async def delete_many(self, keys: Sequence[str]) -> None:
        if not keys:
            return
        checked_limit(len(keys))
        paths = [self._path(key) for key in keys]
        await self._run(lambda: self._remove(paths))

    async def listing(
        self, prefix: str, after: str | None = None, *, limit: int = PAGE_MAX
    ) -> Page:
        checked_prefix(prefix)
        checked_limit(limit)
        top = self._path(prefix[:-1]) if prefix else self._root

        def page() -> Page:
            found = tuple(islice(_walk(top, prefix, after or ""), limit + 1))
            more = len(found) > limit
            return Page(found[:limit], found[limit - 1].key if more else None)

        return await self._run(page)

    async def link(self, ref: Ref, seconds: int, *, filename: str | None = None) -> None:
        return None

    async def check(self) -> None:
        def write_and_read() -> None:
            file = self._begin()
            try:
                file.write(b"ledger")
                _to_disk(file)
                if Path(file.name).read_bytes() != b"ledger":
                    raise StoreUnavailable(f"{self._root} does not give back what was written")
            finally:
                _discard(file)

        await self._run(write_and_read)

    async def sweep_unfinished(self, before: Micros) -> int:
        def sweep() -> int:
            swept = 0
            with suppress(FileNotFoundError), os.scandir(self._unfinished) as files:
                for file in files:
                    with suppress(FileNotFoundError):
                        if file.stat().st_mtime_ns // 1000 < before:
                            os.unlink(file)
                            swept += 1
            return swept

        return await self._run(sweep)

    async def close(self) -> None:
        self._threads.close()

    # --- Files, in threads ----------------------------------------------------------------------
    async def _run(self, do: Callable[[], T]) -> T:
        try:
            return await self._threads.run(do)
        except OSError as error:
            raise self._unavailable(error) from error

    def _unavailable(self, error: OSError) -> StoreUnavailable:
        advice = {
            errno.ENOSPC: "free space there",
            errno.EDQUOT: "free space there",
            errno.EACCES: "give this user the right to read and write there",
            errno.EPERM: "give this user the right to write there, on a disk with hard links",
            errno.EROFS: "mount it for writing, or name another folder in LEDGER_OBJECTS",
        }.get(error.errno or 0, "look at the disk, or name another folder in LEDGER_OBJECTS")
        return StoreUnavailable(f"the object store in {self._root} failed: {error}; {advice}")

    def _path(self, key: str) -> Path:
        names = [_file_name(segment) for segment in checked_key(key).split("/")]
        if any(len(name) > NAME_BYTES_MAX for name in names):
            raise InvalidKey(key, "a part of it is too long for a file's name")
        return self._root.joinpath(*names)

    def _begin(self) -> BinaryIO:
        self._unfinished.mkdir(parents=True, exist_ok=True)
        return open(self._unfinished / secrets.token_hex(16), "xb")

    def _finish(self, file: BinaryIO, path: Path, ref: Ref) -> None:
        _to_disk(file)
        for tries_left in reversed(range(LINK_TRIES_MAX)):
            try:
                self._make_folder(path.parent)
                os.link(file.name, path)
            except FileExistsError:
                if not path.is_file():
                    raise InvalidKey(ref.key, "other objects lie below it") from None
                if not _holds(path, ref):
                    raise ObjectConflict(ref.key) from None
            except NotADirectoryError:
                raise InvalidKey(ref.key, "it lies below another object") from None
            except FileNotFoundError:
                if not tries_left:
                    raise
                continue
            break
        _folder_to_disk(path.parent)

    def _make_folder(self, folder: Path) -> None:
        """With its parents, each durable in its own."""
        if folder == self._root or folder.is_dir():
            return
        self._make_folder(folder.parent)
        try:
            folder.mkdir(exist_ok=True)
        except FileExistsError:
            if folder.exists():
                raise NotADirectoryError(folder) from None
            raise FileNotFoundError(folder) from None  # It was there, and was folded away since.
        _folder_to_disk(folder.parent)

    def _remove(self, paths: Sequence[Path]) -> None:
        """Empty folders go too: their names say whose objects they held."""
        touched: set[Path] = set()
        for path in paths:
            # A folder is no object: other objects lie below such a key.
            with suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
                path.unlink()
                touched.add(path.parent)
        for folder in touched:
            self._fold_away(folder)

    def _fold_away(self, folder: Path) -> None:
        while folder != self._root:
            try:
                folder.rmdir()
            except FileNotFoundError:
                pass
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
                break
            folder = folder.parent
        _folder_to_disk(folder)

    async def _pieces(self, ref: Ref, path: Path) -> AsyncGenerator[bytes, None]:
        file = await self._run(lambda: _opened(path, ref))
        try:
            while piece := await self._run(lambda: file.read(PIECE_BYTES)):
                yield piece
        finally:
            file.close()


def _opened(path: Path, ref: Ref) -> BinaryIO:
    try:
        about = path.stat()
        if stat.S_ISREG(about.st_mode) and about.st_size != ref.size:
            raise ObjectDamaged(ref.key, f"{about.st_size} bytes of {ref.size}")
        return open(path, "rb")
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        raise ObjectNotFound(ref.key) from None


def _holds(path: Path, ref: Ref) -> bool:
    digest = new_sha256()
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size != ref.size:
            return False
        while piece := file.read(PIECE_BYTES):
            digest.update(piece)
    return digest.hexdigest() == ref.sha256


def _to_disk(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _folder_to_disk(folder: Path) -> None:
    """What was made or removed in it survives a crash of the machine."""
    with suppress(FileNotFoundError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _discard(file: BinaryIO) -> None:
    # A disk that took no more takes no more now.
    with suppress(OSError):
        file.close()
    with suppress(FileNotFoundError):
        os.unlink(file.name)


def _walk(folder: Path, head: str, after: str) -> Iterator[Listed]:
    """In the order of the keys; `head` is in front of all that lie in the folder. Skips folders
    that are wholly before `after`, and files whose names no key has."""
    found: list[tuple[str, os.DirEntry[str]]] = []
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
        for entry in entries:
            segment = unquote(entry.name)
            if entry.name.isascii() and _file_name(segment) == entry.name:
                end = "/" if entry.is_dir(follow_symlinks=False) else ""
                found.append((f"{head}{segment}{end}", entry))
    found.sort(key=lambda one: one[0])
    for key, entry in found:
        if key.endswith("/"):
            if key > after or after.startswith(key):
                yield from _walk(Path(entry.path), key, after)
        elif key > after:
            with suppress(FileNotFoundError):
                about = entry.stat()
                yield Listed(key, about.st_size, Micros(about.st_mtime_ns // 1000))
