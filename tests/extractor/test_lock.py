"""Locks between real processes: what they promise is what the operating system does when one dies."""

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from godwit.extractor import lock

HOLD = """
import sys, pathlib
from godwit.extractor import lock
held = lock.take(pathlib.Path(sys.argv[1]))
print("held" if held else "taken", flush=True)
sys.stdin.read()
"""


@contextmanager
def other_process(path: Path) -> Iterator["subprocess.Popen[str]"]:
    """A process that has tried to take the lock and lives on; its first line says how that went."""
    command = [sys.executable, "-c", HOLD, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def said(process: "subprocess.Popen[str]") -> str:
    assert process.stdout
    return process.stdout.readline().strip()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "lock"


def test_a_lock_of_another_process_is_seen_and_cannot_be_taken(path: Path) -> None:
    with other_process(path) as holder:
        assert said(holder) == "held"
        assert lock.is_held(path)
        assert lock.take(path) is None


def test_a_lock_ends_with_its_process_however_that_ends(path: Path) -> None:
    with other_process(path) as holder:
        assert said(holder) == "held"
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    assert not lock.is_held(path)
    mine = lock.take(path)
    assert mine is not None
    mine.release()


def test_of_many_processes_one_gets_the_lock(path: Path) -> None:
    with other_process(path) as one, other_process(path) as two, other_process(path) as three:
        assert sorted(said(each) for each in (one, two, three)) == ["held", "taken", "taken"]


def test_a_process_cannot_take_its_own_lock_twice(path: Path) -> None:
    mine = lock.take(path)
    assert mine is not None
    assert lock.take(path) is None
    mine.release()
    again = lock.take(path)
    assert again is not None
    again.release()


def test_looking_at_its_own_lock_does_not_lose_it(path: Path) -> None:
    # POSIX drops the lock when any descriptor of the file is closed.
    mine = lock.take(path)
    assert mine is not None
    assert lock.is_held(path)
    assert lock.is_held(path.parent / "." / "lock")
    assert lock.take(path) is None
    with other_process(path) as other:
        assert said(other) == "taken"
    mine.release()


def test_a_forked_child_neither_holds_the_lock_nor_frees_it(path: Path) -> None:
    mine = lock.take(path)
    assert mine is not None
    child = os.fork()
    if child == 0:
        seen = lock.is_held(path)
        mine.release()
        time.sleep(60 if seen else 0)
        os._exit(1)
    try:
        with other_process(path) as other:
            assert said(other) == "taken"
        mine.release()
        with other_process(path) as other:
            assert said(other) == "held"
        assert os.waitpid(child, os.WNOHANG) == (0, 0), "the child did not see the lock, or died"
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_file_that_was_removed_while_it_was_locked_is_not_a_lock(path: Path) -> None:
    with other_process(path) as holder:
        assert said(holder) == "held"
        path.unlink()
        mine = lock.take(path)
        assert mine is not None
        assert lock.is_held(path)
        mine.release()


def test_who_only_looks_makes_no_file(path: Path) -> None:
    assert not lock.is_held(path)
    assert not path.exists()


def test_a_moment_of_looking_does_not_keep_anybody_from_taking_it(path: Path) -> None:
    looks, looked = os.pipe()
    looker = os.fork()
    if looker == 0:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
        fcntl.lockf(descriptor, fcntl.LOCK_SH)
        os.write(looked, b"!")
        time.sleep(0.05)
        os._exit(0)
    os.read(looks, 1)
    mine = lock.take(path)
    os.waitpid(looker, 0)
    assert mine is not None
    mine.release()


def test_a_lock_on_a_file_that_is_removed_meanwhile_is_never_given_out(path: Path) -> None:
    """Two processes that take the lock and remove the file before they let go, as `drop` does."""

    def take_and_remove(until: float) -> bool:
        while time.monotonic() < until:
            if (mine := lock.take(path)) is not None:
                if not path.exists():
                    return False
                path.unlink()
                mine.release()
        return True

    until = time.monotonic() + 0.5
    child = os.fork()
    if child == 0:
        os._exit(0 if take_and_remove(until) else 1)
    mine_were_right = take_and_remove(until)
    assert os.waitpid(child, 0)[1] == 0
    assert mine_were_right
