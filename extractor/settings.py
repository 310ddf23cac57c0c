"""Nobody passes arguments to Godwit inside a program: all it knows of its task is in the environment.

GODWIT_JOB                 the job's name; without it Godwit is not there at all
GODWIT_STORE               where the job keeps its state: file:///folder, or an absolute path
GODWIT_STOP_AFTER_STAGES   move out once so many query stages of the program are done (default: never)
GODWIT_STANDBY             1: warm up, wait until the running job is moved out, then be its next driver
GODWIT_GRACE_SECONDS       how long after a SIGTERM the process is killed (default 30, as in Kubernetes)
GODWIT_JSON                1: an error that keeps the driver from starting is told as JSON (see `process`)
GODWIT_BIND                the address by which others reach this process (default 127.0.0.1: nobody
                           from another machine)
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from godwit.extractor.errors import UsageError


@dataclass(frozen=True)
class Settings:
    job: str
    store_uri: str
    stop_after_stages: int | None = None
    grace_seconds: float = 30.0
    bind: str = "127.0.0.1"


def read(environ: Mapping[str, str]) -> Settings:
    given = {name: value for name, value in environ.items() if value != ""}
    if "GODWIT_STORE" not in given:
        raise UsageError("GODWIT_JOB is set, GODWIT_STORE is not", next_step="set it to file:///folder")
    if (standby := given.get("GODWIT_STANDBY", "0")) not in ("0", "1"):
        raise UsageError(f"GODWIT_STANDBY is {standby!r}", next_step="set it to 1, or unset it")
    stages = given.get("GODWIT_STOP_AFTER_STAGES")
    return Settings(
        job=given["GODWIT_JOB"],
        store_uri=given["GODWIT_STORE"],
        stop_after_stages=None if stages is None else _stages(stages),
        grace_seconds=_seconds(given.get("GODWIT_GRACE_SECONDS", "30")),
        bind=given.get("GODWIT_BIND", "127.0.0.1"),
    )


def _stages(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise UsageError(
            f"GODWIT_STOP_AFTER_STAGES is {text!r}",
            next_step="set it to a whole number from 1 on, or unset it",
        )
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise UsageError(
            f"GODWIT_GRACE_SECONDS is {text!r}",
            next_step="set it to a number of seconds above 0, or unset it",
        )
    return seconds
