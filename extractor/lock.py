"""Two drivers of one job would write over each other, and one that was killed cannot say that it is gone.

The operating system can: a POSIX record lock belongs to the process and ends with it, however it ends. It
is not inherited by forks, so that no worker keeps a dead driver's job alive, and it works over NFS. It has
one trap: a process loses its lock as soon as it closes *any* descriptor of that file. Hence exactly one
descriptor per lock file in a process, remembered in `_held`; who already holds a file never opens it again,
not even to look.
"""

import fcntl
import os
import threading
import time
from pathlib import Path

LOOK_SECONDS = 0.2
"""Looking at a lock holds it (shared) for a moment; who wants it tries this long before calling it taken."""

_held: dict[
    tuple[int, str], int
] = {}  # (process, path) -> descriptor; a fork's copies are of another process
_guard = threading.Lock()


class FileLock:
    """An exclusive lock that this process holds until `release`, or its end."""

    def __init__(self, path: str, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor

    def release(self) -> None:
        with _guard:
            if _held.pop((os.getpid(), self._path), None) is not None:
                os.close(self._descriptor)


def take(path: Path) -> FileLock | None:
    """The lock, or None if somebody holds it, in this process or another. Makes the file, not its folder."""
    real = os.path.realpath(path)
    give_up_at = time.monotonic() + LOOK_SECONDS
    while (lock := _try_once(real)) is None and time.monotonic() < give_up_at:
        time.sleep(LOOK_SECONDS / 10)
    return lock


def is_held(path: Path) -> bool:
    """Whether some process holds the lock."""
    real = os.path.realpath(path)
    with _guard:
        if (os.getpid(), real) in _held:
            return True
        try:
            descriptor = os.open(real, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            return not _locked(descriptor, fcntl.LOCK_SH)
        finally:
            os.close(descriptor)


def _try_once(real: str) -> FileLock | None:
    with _guard:
        if (os.getpid(), real) in _held:
            return None
        descriptor = os.open(real, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        # Who held it may have removed the file before letting go: then this is a lock on nothing.
        if not _locked(descriptor, fcntl.LOCK_EX) or not _is_file(descriptor, real):
            os.close(descriptor)
            return None
        _held[os.getpid(), real] = descriptor
        return FileLock(real, descriptor)


def _locked(descriptor: int, how: int) -> bool:
    try:
        fcntl.lockf(descriptor, how | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # EAGAIN or EACCES, as POSIX lets the system choose
        return False
    return True


def _is_file(descriptor: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False
