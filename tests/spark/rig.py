"""Two drivers of different size, and queries that are moved from one to the other.

The source runs each query once and moves it out at all its points on the way; the target, with another
number of cores, resumes from every one. Three answers must agree at each point: the one of the resumed
query, the one of the same query left alone, and the one of the source's query, which was parked and went on.
"""

import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TypeVar

from godwit.extractor.job import JobFolder
from godwit.extractor.store import open_store
from tests.spark.account import NOTHING, Account, account
from tests.spark.features import Plan
from tests.spark.messages import (
    Answer,
    Capture,
    Captured,
    Explain,
    Explained,
    Point,
    Ran,
    Reply,
    Request,
    Resume,
    Resumed,
    Run,
    Shape,
    Shaped,
    Trouble,
)
from tests.spark.questions import Question
from tests.tpc.compare import difference

ROOT = Path(__file__).parents[2]

REPLY_SECONDS = 180.0
"""Longer than any query of these sizes takes: one that hangs is an error, and its driver of no more use."""

CONF = {
    "spark.driver.memory": "2g",
    "spark.ui.enabled": "false",
    "spark.log.level": "ERROR",
    "spark.sql.shuffle.partitions": "6",
}
SOURCE = {"spark.master": "local[2]"}
TARGET = {"spark.master": "local[3]"}

Expected = TypeVar("Expected", bound=Reply)


class DriverError(Exception):
    """What a driver raised."""


class DriverLost(DriverError):  # noqa: N818
    """A driver hangs or is gone."""


@dataclass(frozen=True)
class PointResult:
    """One move. It is right if there is neither a failure nor a difference."""

    number: int
    failure: str | None = None
    difference: str | None = None
    fragments: int = 0
    used: int = 0
    fallbacks: tuple[str, ...] = ()
    account: Account = NOTHING

    @property
    def wrong(self) -> str | None:
        return self.failure or self.difference


@dataclass(frozen=True)
class Proof:
    """A query and all its moves."""

    name: str
    answer: Answer  # left alone
    plan: Plan
    parked_difference: str | None  # between the query left alone and the one that was parked and went on
    points: tuple[PointResult, ...]

    @property
    def missed(self) -> list[str]:
        """Stages that were stored, and ran again all the same."""
        return [
            f"{self.name} at point {point.number}: {each.pipeline} ({each.kind}) {each.reason}"
            for point in self.points
            for each in point.account.recomputed
            if each.missed
        ]

    @property
    def wrong(self) -> list[str]:
        parked = (
            [f"{self.name} parked and un-parked: {self.parked_difference}"] if self.parked_difference else []
        )
        return parked + [
            f"{self.name} at point {each.number}: {each.wrong}" for each in self.points if each.wrong
        ]


class RemoteDriver:
    def __init__(self, log: Path) -> None:
        self._connection, theirs = Pipe()
        environment = {name: value for name, value in os.environ.items() if not name.startswith("GODWIT_J")}
        environment |= {
            "PYTHONHASHSEED": "0",
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        self._log = log
        with log.open("ab") as file, theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.spark.rigdriver"],
                cwd=ROOT, env=environment, stdin=theirs.fileno(), stdout=file, stderr=file,
            )  # fmt: skip

    def ask(self, request: Request, expected: type[Expected]) -> Expected:
        self._connection.send(request)
        return self._reply(self._connection, expected)

    def _reply(self, connection: Connection, expected: type[Expected]) -> Expected:
        try:
            if not connection.poll(REPLY_SECONDS):
                raise DriverLost(f"no answer within {REPLY_SECONDS:g} s")
            reply = connection.recv()
        except (EOFError, OSError) as error:
            raise DriverLost(f"the driver is gone: {self._log.read_text()[-2000:]}") from error
        if isinstance(reply, Trouble):
            raise DriverError(reply.what)
        assert isinstance(reply, expected)
        return reply

    def close(self) -> None:
        """A driver that still answers ends by itself; its JVM ends with it in any case."""
        self._connection.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Rig:
    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._store_folder = folder / "store"
        self._start({})

    def shape(self, context_conf: Mapping[str, str]) -> None:
        """Both drivers make their SparkContext anew, with this conf beside the usual one."""
        conf = {**CONF, **context_conf}
        pinned = self._source.ask(Shape({**conf, **SOURCE}, {}), Shaped).pinned
        self._target.ask(Shape({**conf, **TARGET}, pinned), Shaped)
        self._context_conf = context_conf

    def plan(self, question: Question) -> str:
        """The question's first plan."""
        return self._ask(self._target, Explain(question), Explained).plan

    def run(self, question: Question) -> Ran:
        """The question's answer by the target, left alone."""
        return self._ask(self._target, Run(question), Ran)

    def prove(self, question: Question) -> Proof:
        """Moves the query at every point."""
        return self._proof(question, self.run(question), at=None, drain=True)

    def prove_once(self, question: Question, chosen: random.Random) -> Proof:
        """Moves the query once, at a point that it should reach; running stages are awaited, or left."""
        ran = self.run(question)
        return self._proof(
            question, ran, at=chosen.randint(1, max(1, ran.answer.stages)), drain=chosen.random() < 0.5
        )

    def close(self) -> None:
        self._source.close()
        self._target.close()

    def _start(self, context_conf: Mapping[str, str]) -> None:
        self._source = RemoteDriver(self._folder / "source.log")
        self._target = RemoteDriver(self._folder / "target.log")
        self.shape(context_conf)

    def _ask(self, driver: RemoteDriver, request: Request, expected: type[Expected]) -> Expected:
        """A driver that is lost is not asked again: the next question finds a new pair."""
        try:
            return driver.ask(request, expected)
        except DriverLost:
            self.close()
            self._start(self._context_conf)
            raise

    def _proof(self, question: Question, ran: Ran, at: int | None, drain: bool) -> Proof:
        with self._store() as store_uri:
            captured = self._ask(self._source, Capture(question, store_uri, at, drain), Captured)
            points = tuple(
                self._resumed(question, store_uri, number, point, ran.answer)
                for number, point in enumerate(captured.points, start=1)
            )
        parked = difference(ran.answer.rows, captured.answer.rows, ran.answer.order)
        return Proof(question.name, ran.answer, ran.plan, parked, points)

    @contextmanager
    def _store(self) -> Iterator[str]:
        try:
            yield f"file://{self._store_folder}"
        finally:
            shutil.rmtree(self._store_folder, ignore_errors=True)

    def _resumed(
        self, question: Question, store_uri: str, number: int, point: Point, expected: Answer
    ) -> PointResult:
        if point.failure is not None:
            return PointResult(number, failure=f"could not be moved out: {point.failure}")
        stored = JobFolder(open_store(store_uri, create=False), point.job).committed()
        assert stored is not None
        try:
            resumed = self._ask(self._target, Resume(question, store_uri, point.job), Resumed)
        except DriverError as error:
            return PointResult(number, failure=str(error))
        return PointResult(
            number,
            difference=difference(expected.rows, resumed.answer.rows, expected.order),
            fragments=len(stored.fragments),
            used=len(resumed.used),
            fallbacks=tuple(resumed.fallbacks.values()),
            account=account(stored, resumed.used, resumed.fallbacks, resumed.ran),
        )


@contextmanager
def open_rig(folder: Path) -> Iterator[Rig]:
    rig = Rig(folder)
    try:
        yield rig
    finally:
        rig.close()
