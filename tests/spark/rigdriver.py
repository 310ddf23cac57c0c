"""A driver process of the rig: it answers questions, and moves them out or resumes them on the way.

What it does is the product's own: the same agent, lease, manifest and JVM side as in a program that was made
movable. Two things are left out. After a commit nobody leaves: the gate opens again and the query goes on, so
that one run is moved out at all its points, and ends, and must end right. And nobody asks whether source and
target are the same program: here they are.
"""

import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from multiprocessing.connection import Connection
from typing import Any

from pyspark import SparkConf
from pyspark.sql import DataFrame, SparkSession

from godwit.extractor.agent import Agent
from godwit.extractor.control import Event, Order
from godwit.extractor.job import JobFolder, JobLease
from godwit.extractor.jvm import SparkJvm, connect, launch
from godwit.extractor.manifest import Fragment, Manifest
from godwit.extractor.program import Program, describe
from godwit.extractor.sparkconf import additions
from godwit.extractor.store import open_store
from godwit.planrewrite.select import StateSelection
from godwit.planrewrite.stagegraph import StageGraph
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
from tests.spark.questions import Built, Question
from tests.tpc.compare import Row

NOTICE_MS = 20
MOVE_SECONDS = 300.0


class Driver:
    def __init__(self, gateway: Any) -> None:
        self._gateway = gateway
        self._jvm, self._jar = connect(gateway)
        self._gate = gateway.jvm.org.apache.spark.sql.godwit.Gate

    def shape(self, request: Shape) -> Shaped:
        if (before := SparkSession.getActiveSession()) is not None:
            before.stop()
        conf = SparkConf().setAll([*request.conf.items()])
        conf.setAll([*additions(request.conf, self._jar, request.carried).items()])
        self._spark = SparkSession.builder.config(conf=conf).getOrCreate()
        given = dict(self._spark.sparkContext.getConf().getAll())
        assert given.items() >= request.conf.items(), "the context is another one"
        self._jvm.start(self._spark.sparkContext, stop_after_stages=None, grace_ms=30_000)
        return Shaped(self._jvm.pinned())

    def explain(self, request: Explain) -> Explained:
        with self._built(request.question) as built:
            return Explained(Plan.of(built.frame).final)

    def run(self, request: Run) -> Ran:
        with self._built(request.question) as built:
            answer = self._answer(built, lambda: rows_of(built.frame))
            return Ran(answer, Plan.of(built.frame))

    def capture(self, request: Capture) -> Captured:
        points: list[Point] = []
        with self._built(request.question) as built:
            answer = self._answer(built, lambda: self._stopping(request, built, points))
        return Captured(answer, tuple(points))

    def resume(self, request: Resume) -> Resumed:
        job = JobFolder(open_store(request.store_uri, create=False), request.job)
        stored = job.committed()
        assert stored is not None
        # Before the first line of the program: a table is planned when it is cached.
        self._jvm.load({job.bulk_uri(each.folder): each for each in stored.fragments})
        try:
            with self._built(request.question) as built:
                answer = self._answer(built, lambda: rows_of(built.frame))
                report, ran = self._jvm.report(), frozenset(self._ran(built.frame))
        finally:
            self._jvm.load({})
        return Resumed(answer, report.used, report.fallbacks, ran)

    def _ran(self, frame: DataFrame) -> Iterator[str]:
        """The fingerprints of the exchanges that the frame's last run has computed."""
        fingerprint = self._gateway.jvm.org.apache.spark.sql.godwit.Fingerprint(
            frame.sparkSession._jsparkSession
        )
        for exchange in computed(frame._jdf.queryExecution().executedPlan()):
            print_of = fingerprint.exchange(exchange)
            if print_of.isRight():
                yield str(print_of.toOption().get())

    @contextmanager
    def _built(self, question: Question) -> Iterator[Built]:
        try:
            for key, value in question.conf.items():
                self._spark.conf.set(key, value)
            yield question.build(self._spark)
        finally:
            self._spark.catalog.clearCache()
            for key in question.conf:
                self._spark.conf.unset(key)

    def _answer(self, built: Built, run: Callable[[], list[Row]]) -> Answer:
        before = self._stages_finished()
        rows = run()
        return Answer(rows, built.order, self._stages_finished() - before)

    def _stages_finished(self) -> int:
        return StageGraph.from_json(self._jvm.snapshot()).stages_finished

    def _stopping(self, request: Capture, built: Built, points: list[Point]) -> list[Row]:
        """Collects in another thread, which the gate may hold."""
        self._gate.setStopAfter(self._stages_finished() + (request.at or 1))
        collecting = Collecting(built.frame)
        try:
            while collecting.is_alive():
                if self._jvm.await_notice(NOTICE_MS) is not None:
                    points.append(self._point(request, len(points) + 1))
                    if request.at is None:
                        self._gate.setStopAfter(self._stages_finished() + 1)
                    self._jvm.open_gate()
        finally:
            self._gate.setStopAfter(0)
            self._jvm.open_gate()
        return collecting.result()

    def _point(self, request: Capture, number: int) -> Point:
        job = JobFolder(open_store(request.store_uri, create=True), f"{request.question.name}-{number}")
        lease = job.acquire()
        failures: list[Event] = []

        def note(event: Event) -> None:
            if event["phase"] == "failed":
                failures.append(event)

        agent = Agent(
            self._jvm,
            lease,
            loaded={},
            manifest=lambda *made: manifest(self._jvm, lease, *made),
            moves=0,
            narrate=note,
            leave=lambda exit_code: None,
        )
        agent.move(Order(time.time() + MOVE_SECONDS, drain=request.drain), tell=lambda event: None)
        lease.release()
        return Point(job.name, str(failures[0]) if failures else None)


class Collecting(threading.Thread):
    def __init__(self, frame: DataFrame) -> None:
        super().__init__(daemon=True)
        self._frame = frame
        self._error: BaseException | None = None
        self._rows: list[Row] = []
        self.start()

    def run(self) -> None:
        try:
            self._rows = rows_of(self._frame)
        except BaseException as error:
            self._error = error

    def result(self) -> list[Row]:
        self.join()
        if self._error is not None:
            raise self._error
        return self._rows


def computed(plan: Any) -> Iterator[Any]:
    """The exchanges of a finished plan, but those that were reused or read from a store."""
    name = plan.getClass().getSimpleName()
    if name in ("ShuffleExchangeExec", "BroadcastExchangeExec"):
        yield plan
    if name == "AdaptiveSparkPlanExec":
        yield from computed(plan.executedPlan())
    elif name in ("ShuffleQueryStageExec", "BroadcastQueryStageExec", "ResultQueryStageExec"):
        yield from computed(plan.plan())
    elif name != "ReusedExchangeExec":
        for beneath in (plan.children(), plan.subqueries()):
            for number in range(beneath.size()):
                yield from computed(beneath.apply(number))


def rows_of(frame: DataFrame) -> list[Row]:
    return [tuple(row) for row in frame.collect()]


def manifest(
    jvm: SparkJvm,
    lease: JobLease,
    graph: StageGraph,
    selection: StateSelection,
    fragments: tuple[Fragment, ...],
) -> Manifest:
    return Manifest(
        job=lease.job.name,
        epoch=lease.epoch,
        moves=1,
        written_at=time.time(),
        spark_version=graph.spark_version,
        program=this_program(),
        sql_conf=jvm.pinned(),
        snapshot=graph.to_json(),
        selection=selection,
        fragments=fragments,
    )


@cache
def this_program() -> Program:
    return describe(sys.argv, sys.modules, code_sha256=None)


def reply_to(driver: Driver, request: Request) -> Reply:
    actions: Mapping[type, Callable[[Any], Reply]] = {
        Shape: driver.shape,
        Explain: driver.explain,
        Run: driver.run,
        Capture: driver.capture,
        Resume: driver.resume,
    }
    try:
        return actions[type(request)](request)
    except Exception as error:
        traceback.print_exc()
        return Trouble(gist(error))


def gist(error: Exception) -> str:
    """Java's errors are pages long: their first line and all their causes."""
    lines = str(error).splitlines()
    said = [each.strip() for each in lines[:3] if each.strip() and not each.startswith("\tat ")]
    return " | ".join(
        [type(error).__name__, *said, *(each for each in lines if each.startswith("Caused by"))]
    )


def main() -> None:
    """Requests come by the socket that is this process's standard input; its end is the end."""
    rig = Connection(os.dup(0))
    shape: Shape = rig.recv()
    driver = Driver(launch(shape.conf))
    request: Request = shape
    while True:
        rig.send(reply_to(driver, request))
        try:
            request = rig.recv()
        except EOFError:
            return


if __name__ == "__main__":
    main()
