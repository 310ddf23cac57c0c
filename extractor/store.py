"""State has to outlive the machine that made it, on whatever the platform has: a shared disk, an object
store.

So the rest of Godwit sees a few verbs over keys like "jobs/etl/manifest", and this module alone knows what
is behind them. Small records go through these verbs; bulk data is written by Spark's executors themselves,
below the address that `bulk_uri` gives. The operating system's errors become Godwit's here, once.

A store begins with a marker. It guards strangers' folders from us, and us from believing that a job has no
state when in truth a disk is not mounted: without the marker nothing is absent, and nothing is written.
"""

import errno
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Protocol

from godwit.extractor import lock
from godwit.extractor.errors import (
    ForeignStore,
    GodwitError,
    StoreFull,
    StoreUnreadable,
    StoreUnsure,
    UsageError,
)

FORMAT = 1
MARKER = "godwit-store"
TEMPORARY = ".godwit-"
"""How names of half-written files begin; nobody lists them."""

REFUSALS = (
    *(errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM),
    *(errno.ENOENT, errno.ENOTDIR, errno.EISDIR),
)
"""Errors by which the system says that it has not done it. Others may come after it has."""

NOTHING = ("lost+found",)
"""What a fresh volume contains by itself."""


class Lock(Protocol):
    def release(self) -> None: ...


class Store(Protocol):
    @property
    def uri(self) -> str: ...

    def get(self, key: str) -> bytes | None:
        """The whole value; None if there is none."""

    def put(self, key: str, value: bytes, *, private: bool = False) -> None:
        """Replace the value at once and durably: a reader sees the old one or the new one, even after a
        crash.
        """

    def create(self, key: str, value: bytes) -> bool:
        """Like `put`, but of all who try only one gets True, and only if there was no value."""

    def delete(self, key: str) -> None:
        """The value, and everything below the key. Deleting what is not there is fine."""

    def list(self, key: str) -> list[str]:
        """The names directly below the key, sorted."""

    def exists(self, key: str) -> bool: ...

    def bulk_uri(self, key: str) -> str:
        """The address of the key for Hadoop's FileSystem API."""

    def lock(self, key: str) -> Lock | None:
        """Held until it is released or this process ends; None if somebody holds it."""

    def is_locked(self, key: str) -> bool: ...


def open_store(uri: str, *, create: bool) -> Store:
    """The store at this address; with `create` an empty or missing folder becomes one."""
    root = _path(uri)
    with _errors_of(root):
        if root.exists() and not root.is_dir():
            raise StoreUnreadable(f"{root} is not a folder")
        if create:
            root.mkdir(parents=True, exist_ok=True)
        marker = root / MARKER
        if not marker.exists():
            _check_empty(root)
            if not create:
                raise StoreUnreadable(f"there is no store in {root}")
            _write(marker, json.dumps({"format": FORMAT}).encode(), only_if_new=True)
        _check_format(marker)
    return FileStore(root)


class FileStore:
    """A store in a folder that all who use it have mounted."""

    def __init__(self, root: Path) -> None:
        self._root = root

    @property
    def uri(self) -> str:
        return f"file://{self._root}"

    def get(self, key: str) -> bytes | None:
        with self._errors():
            try:
                return self._at(key).read_bytes()
            except FileNotFoundError:
                self._check_mounted()
                return None

    def put(self, key: str, value: bytes, *, private: bool = False) -> None:
        with self._errors():
            _write(self._ready(key), value, mode=0o600 if private else 0o666)

    def create(self, key: str, value: bytes) -> bool:
        with self._errors():
            return _write(self._ready(key), value, only_if_new=True)

    def delete(self, key: str) -> None:
        path = self._at(key)
        with self._errors():
            self._check_mounted()
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
            self._drop_empty_folders(path.parent)

    def list(self, key: str) -> list[str]:
        with self._errors():
            try:
                names = os.listdir(self._at(key))
            except FileNotFoundError:
                self._check_mounted()
                return []
        return sorted(name for name in names if not name.startswith(TEMPORARY))

    def exists(self, key: str) -> bool:
        with self._errors():
            found = self._at(key).exists()
            if not found:
                self._check_mounted()
            return found

    def bulk_uri(self, key: str) -> str:
        # Not percent-encoded: Hadoop's Path takes the text as it stands.
        return f"file://{self._at(key)}"

    def lock(self, key: str) -> Lock | None:
        with self._errors():
            return lock.take(self._ready(key))

    def is_locked(self, key: str) -> bool:
        with self._errors():
            return lock.is_held(self._at(key))

    def _at(self, key: str) -> Path:
        parts = key.split("/")
        if any(part in ("", ".", "..") for part in parts):
            raise ValueError(f"not a key: {key!r}")
        return self._root.joinpath(*parts)

    def _ready(self, key: str) -> Path:
        self._check_mounted()
        path = self._at(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def _check_mounted(self) -> None:
        if not (self._root / MARKER).exists():
            raise StoreUnreadable(f"the store in {self._root} has gone")

    def _drop_empty_folders(self, folder: Path) -> None:
        with suppress(OSError):  # not empty: done
            while folder != self._root:
                folder.rmdir()
                folder = folder.parent

    def _errors(self) -> AbstractContextManager[None]:
        return _errors_of(self._root)


def _path(uri: str) -> Path:
    if not uri:
        raise UsageError("the address of the store is empty", next_step="give a folder, as file:///folder")
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]+):", uri)
    if scheme is None:
        return Path(os.path.abspath(uri))
    if scheme[1].lower() != "file":
        raise UsageError(f"cannot keep state in {uri}: only file:///folder and plain paths are supported")
    found = re.fullmatch(r"file:(?://(?:localhost)?)?(/(?!/).*)", uri, re.IGNORECASE)
    if found is None:
        raise UsageError(f"{uri} names another machine or no folder: write file:///folder")
    return Path(os.path.abspath(found[1]))


def _check_empty(root: Path) -> None:
    if strangers := [
        name for name in os.listdir(root) if name not in NOTHING and not name.startswith(TEMPORARY)
    ]:
        raise ForeignStore(f"{root} is no store of godwit and not empty (it has {min(strangers)})")


def _check_format(marker: Path) -> None:
    try:
        found = json.loads(marker.read_bytes())["format"]
    except (ValueError, KeyError, TypeError) as error:
        raise ForeignStore(f"{marker} is not the marker of a store") from error
    if found != FORMAT:
        raise ForeignStore(f"{marker.parent} is a store of format {found}, this godwit reads format {FORMAT}")


def _write(path: Path, value: bytes, *, mode: int = 0o666, only_if_new: bool = False) -> bool:
    temporary = path.with_name(TEMPORARY + secrets.token_hex(8))
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(value)
            file.flush()
            os.fsync(file.fileno())
        try:
            # Linking fails where there is a file already, renaming takes its place; both are atomic.
            os.link(temporary, path) if only_if_new else os.rename(temporary, path)
        except FileExistsError:
            return False
        except OSError as error:
            raise error if error.errno in REFUSALS else _Unsure(*error.args) from error
        try:
            _sync_folder(path.parent)
        except OSError as error:
            raise _Unsure(*error.args) from error
        return True
    finally:
        with suppress(OSError):  # what stays behind means nothing, and must not hide how it ended
            temporary.unlink(missing_ok=True)


class _Unsure(Exception):  # noqa: N818
    """An OSError after which nobody knows whether the new name is there."""


def _sync_folder(folder: Path) -> None:
    """The new name, too, has to survive a crash of the machine."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _errors_of(root: Path) -> Iterator[None]:
    try:
        yield
    except _Unsure as error:
        raise StoreUnsure(f"the store in {root} failed in the middle of a write: {error}") from error
    except OSError as error:
        raise translated(error, root) from error


def translated(error: OSError, root: Path) -> GodwitError:
    """What the operating system said, in Godwit's words."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StoreFull(f"no space left in the store in {root}")
    if error.errno == errno.ENOENT:
        return StoreUnreadable(f"there is no store in {root}")
    return StoreUnreadable(f"cannot use the store in {root}: {error.strerror}")
