"""A demonstration of moving between pools of machines needs two pools, and most desks have one machine.

Here a pool is a process with a number of cores: it starts a job, or stands by for one, and can be watched.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from godwit.extractor.errors import GodwitError
from godwit.orchestrator.launch import Launch

Seen = TypeVar("Seen")

LOOK_SECONDS = 0.1
PATIENCE_SECONDS = 600.0


class PoolFailed(GodwitError):  # noqa: N818
    exit_code = 1
    next_step = "see the lines above"


class Pool:
    def __init__(self, name: str, cores: int, log: Path) -> None:
        self.name = name
        self.cores = cores
        self.doing = ""
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, launch: Launch, program: list[str]) -> None:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, *program],
                env=launch.environment(os.environ),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def said(self, words: str) -> bool:
        return words in self._log.read_text(errors="replace")

    def until(self, look: Callable[[], Seen | None]) -> Seen:
        """What `look` sees, as soon as it sees something; an error if the process ends before."""
        patience_ends_at = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < patience_ends_at:
            # In this order: what a process did before its end counts.
            code = self._code()
            if seen := look():
                return seen
            if code is not None:
                raise self._failed(f"ended with exit code {code}")
            time.sleep(LOOK_SECONDS)
        raise self._failed(f"has not come on for {PATIENCE_SECONDS:.0f} s")

    def exit_code(self) -> int:
        """Of the process, which is about to end."""
        assert self._process is not None
        return self._process.wait(timeout=PATIENCE_SECONDS)

    def stop(self) -> None:
        if self._process and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def _code(self) -> int | None:
        return self._process.poll() if self._process else None

    def _failed(self, what: str) -> PoolFailed:
        lines = self._log.read_text(errors="replace").splitlines()[-20:]
        print(*lines, sep="\n", file=sys.stderr)
        return PoolFailed(f"the {self.name} pool {what}")
