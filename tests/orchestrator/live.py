"""A job that is alive, without Spark: a real lock, a real running record, a real control endpoint. Only the
agent behind the endpoint is a stand-in, which plays a given move."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from godwit.extractor.control import ControlServer, Event, Order, failure
from godwit.extractor.errors import GodwitError
from godwit.extractor.job import JobFolder
from godwit.planrewrite.select import StateSelection, select
from godwit.planrewrite.stagegraph import StageGraph
from tests.extractor.samples import MANIFEST, RUNNING, fragment
from tests.planrewrite.graphs import graph, pipeline, result

TOKEN = "s3same"

HALF_WAY = graph(
    pipeline("7.0", bytes=2_000_000, rows=1_000, operator="Exchange hashpartitioning(a, 8)"),
    pipeline("7.1", "7.0", bytes=3_000_000),
    pipeline("7.2", refusal="nondeterministic: rand()"),
    pipeline("7.3", "7.1 7.2", "running", tasks_done=3, tasks_total=8),
    pipeline("7.4", "7.1", "waiting"),
    result("7.5", "7.3 7.4"),
)


class LiveJob:
    def __init__(self, job: JobFolder) -> None:
        self.graph = HALF_WAY
        self.refusal: GodwitError | None = None
        self.orders: list[Order] = []
        self.lease = job.acquire()
        endpoint = ControlServer(self, "127.0.0.1", TOKEN).endpoint
        self.lease.announce(
            replace(
                RUNNING, epoch=self.lease.epoch, endpoint=endpoint, token=TOKEN, started_at=time.time() - 90
            )
        )

    def status(self) -> Mapping[str, Any]:
        return {"job": self.lease.job.name}

    def snapshot(self) -> str:
        return self.graph.to_json()

    def move(self, order: Order, tell: Callable[[Event], None]) -> None:
        self.orders.append(order)
        for event in self.steps():
            tell(event)

    def steps(self) -> Sequence[Event]:
        if self.refusal:
            return [{"phase": "parking"}, {"phase": "failed", **failure(self.refusal)}]
        return [
            {"phase": "parking"},
            {"phase": "draining", "seconds": 27.5},
            {"phase": "extracting", "pipelines": 1, "bytes": 3_000_000},
            {"phase": "committed", "seconds": 0.5, "fragments": 1, "bytes": 3_000_000, "recomputed": 1},
            {"phase": "left", "exit_code": 75},
        ]


def store_state(job: JobFolder, taken: StageGraph = HALF_WAY) -> None:
    """What a driver leaves that was moved out."""
    lease = job.acquire()
    lease.announce(replace(RUNNING, epoch=lease.epoch))
    kept = (fragment(bytes=3_000_000, pipeline="7.1", folder=f"{lease.new_blocks()}/f0"),)
    lease.commit(
        replace(
            MANIFEST,
            job=job.name,
            epoch=lease.epoch,
            written_at=time.time() - 7200,
            snapshot=taken.to_json(),
            selection=all_written(select(taken)),
            fragments=kept,
        )
    )
    lease.release()


def all_written(selection: StateSelection) -> StateSelection:
    """As the manifest has it: at the commit nothing is left to write."""
    return replace(selection, chosen=tuple(replace(chosen, bytes=0) for chosen in selection.chosen))
