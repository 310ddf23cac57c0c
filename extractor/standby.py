"""A cold Spark needs fifteen seconds to its first row. A query that is moved should not pay for that.

A standby is a driver that has everything but the job: the JVM runs, the context is shaped like the running
job's, executors are there, a small query has been moved out and in. It waits until the job itself has been
moved out and its process is gone. If the job ends by itself, the standby was not needed, and ends too.
"""

import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from godwit.extractor.driver import Driver
from godwit.extractor.errors import MoveFailed, UnknownJob
from godwit.extractor.job import JobFolder, JobState
from godwit.extractor.process import say
from godwit.extractor.settings import Settings
from godwit.extractor.store import open_store
from godwit.extractor.tenure import check_program

LOOK_SECONDS = 0.05
"""Half of it is what the wait adds to a move on average."""


@dataclass(frozen=True)
class Awaited:
    job: JobFolder
    conf: Mapping[str, str]  # of its SparkContext


class Stage(Protocol):
    def rehearse(self, base_uri: str) -> None: ...

    def stop_rehearsal(self) -> None:
        """What runs of it ends soon."""


class Warming:
    """What a context gets before the job is this driver's: its shape, and nothing of the job."""

    def __init__(self, driver: Driver, conf: Mapping[str, str]) -> None:
        self._driver = driver
        self._conf = conf

    def additions(self, given: Mapping[str, str]) -> Mapping[str, str]:
        return self._driver.shape(given, self._conf)

    def attach(self, context: object) -> None:
        """Not yet."""

    def begin_effect(self, name: str) -> None:
        """There is no program yet."""

    def retire(self) -> None:
        """There is no job yet."""


def find(settings: Settings, argv: Sequence[str]) -> Awaited | None:
    """The job to wait for, running or moved out; None if it has come to its own end."""
    job = JobFolder(open_store(settings.store_uri, create=False), settings.job)
    view = job.view()
    if view.state is JobState.ENDED:
        return None
    if view.state is JobState.DEAD or view.running is None:
        raise UnknownJob(f"job {job.name} is not running", next_step="start it first, without standby")
    # Another program is an error now. Other code beneath it is looked for when the job is ours.
    check_program(view.running.program, argv, code_sha256=None)
    return Awaited(job, view.running.spark_conf)


def rehearse(awaited: Awaited, jvm: Stage) -> None:
    """The first query of a JVM is slow: it is one of Godwit's own, as long as the job is in no need."""
    job = awaited.job

    def move() -> None:
        try:
            jvm.rehearse(job.bulk_uri(f"blocks/rehearsal-{secrets.token_hex(4)}"))
        except MoveFailed as error:
            if job.is_alive():
                say(f"{error}; the standby is less warm than it could be")

    rehearsal = threading.Thread(target=move, name="godwit-rehearsal")
    if job.is_alive():
        rehearsal.start()
        while rehearsal.is_alive():
            rehearsal.join(LOOK_SECONDS)
            if rehearsal.is_alive() and not job.is_alive():
                jvm.stop_rehearsal()
                rehearsal.join()


def wait(awaited: Awaited, sleep: Callable[[float], None] = time.sleep) -> bool:
    """True once the job has been moved out and its process is gone, False once it has come to its own end."""
    job = awaited.job
    while (view := job.view()).state is JobState.RUNNING:
        while job.is_alive():
            sleep(LOOK_SECONDS)
    if view.state is JobState.ENDED:
        return False
    # The manifest of an earlier driver is not a move: the latest one, which had resumed from it, was killed.
    if view.manifest is None or view.manifest.epoch != view.epoch:
        raise MoveFailed(
            f"the driver of {job.name} died without being moved out",
            next_step="run the job again without standby",
        )
    return True
