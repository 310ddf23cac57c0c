"""Godwit is a guest in the program's process: what it says must be told apart from what the program says, and
when it ends the process, nothing of the program may run any more.

Speaking is one line on stderr, marked. Leaving is by `os._exit`: no `finally`, no `atexit`, no `except` of
the program takes the stop for an event of its own. The JVM is told to end by itself: it would follow its
Python only once no fork of that holds the pipe between them.
"""

import json
import os
import queue
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NoReturn

from godwit.extractor.errors import GodwitError, failure

FLUSH_SECONDS = 1.0


def say(text: str) -> None:
    _speaker.say(f"godwit: {text}")


class _Speaker:
    """Nobody listens where the stream is closed, or its reader gone or stuck: no move waits for that."""

    def __init__(self) -> None:
        self._lines: queue.SimpleQueue[tuple[str, threading.Event]] = queue.SimpleQueue()
        self._stuck = False
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()

    def say(self, line: str) -> None:
        said = threading.Event()
        self._lines.put((line, said))
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(target=self._speak, name="godwit-speaker", daemon=True)
                self._thread.start()
        # Lines are to stand where they were said; but whoever has been waited for once is not again.
        if not self._stuck and not said.wait(FLUSH_SECONDS):
            self._stuck = True

    def _speak(self) -> None:
        while True:
            line, said = self._lines.get()
            if sys.stderr is not None:
                with suppress(OSError, ValueError):
                    print(line, file=sys.stderr, flush=True)
            self._stuck = False
            said.set()


_speaker = _Speaker()
os.register_at_fork(after_in_child=_speaker.__init__)  # type: ignore[misc]


def one_line(error: GodwitError) -> str:
    return f"{error}; {error.next_step}"


def die(error: GodwitError) -> NoReturn:
    if os.environ.get("GODWIT_JSON", "0") not in ("", "0"):
        _speaker.say(json.dumps(failure(error)))
    else:
        say(one_line(error))
    leave(error.exit_code)


def leave(exit_code: int) -> NoReturn:
    # A reader that has stopped reading would hold the flush for ever, so it is not waited for.
    flush = threading.Thread(target=_flush, daemon=True)
    flush.start()
    flush.join(FLUSH_SECONDS)
    os._exit(exit_code)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and not stream.closed:
            stream.flush()


def narrate(event: Mapping[str, Any]) -> None:
    """A move, for whoever reads the driver's log."""
    if event["phase"] == "parking":
        say("moving out: parking the queries")
    elif event["phase"] == "committed":
        lost = f", {event['recomputed']} stages will run again" if event["recomputed"] else ""
        size_mb = event["bytes"] / 1e6
        say(f"moved out in {event['seconds']:.1f} s: {event['fragments']} fragments, {size_mb:.1f} MB{lost}")
    elif event["phase"] == "failed":
        say(f"not moved, the program goes on: {event['error']}; {event['next_step']}")
