"""A stand-in for the driver's JVM: a few queries that run, park and finish, without Spark.

It is honest: stages finish only by being waited for, it writes files, it writes only what has finished, and
what it refuses or fails to write is not there afterwards.
"""

import queue
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from godwit.extractor.errors import MoveFailed
from godwit.extractor.facade import Extraction, JvmGone, Notice, NotWritten, Report, Written
from godwit.extractor.manifest import Fragment
from godwit.extractor.workercode import Surroundings
from godwit.planrewrite.stagegraph import Pipeline, StageGraph, State


class Machine:
    def __init__(self, graph: StageGraph) -> None:
        self.graph = graph
        self.gate_is_open = True
        self.ended = False
        self.is_blind = False
        self.effects: list[str] = []
        self.notices: queue.Queue[Notice | None] = queue.Queue()
        self.drain_ms = 0  # how long the running stages still take
        self.looks_before_submission = 0  # how often it is quiet although a stage has begun
        self.refuses: set[str] = set()
        self.fails: dict[str, str] = {}
        self.fallbacks: dict[str, str] = {}
        self.loaded: dict[str, Fragment] = {}
        self.extracted: list[list[str]] = []
        self.timeouts_ms: list[int] = []
        self.waited_ms = 0
        self.on_wait: Callable[[], None] = lambda: None
        self.on_extract: Callable[[], None] = lambda: None

    def surroundings(self) -> Surroundings:
        return Surroundings("", "")

    def sees(self, uri: str) -> bool:
        return Path(uri.removeprefix("file://")).exists() and not self.is_blind

    def start(self, context: object, stop_after_stages: int | None, grace_ms: int) -> None:
        self.started_with = (stop_after_stages, grace_ms)

    def end(self) -> None:
        self.ended = True

    def pinned(self) -> Mapping[str, str]:
        return {"spark.sql.leafNodeDefaultParallelism": "2"}

    def await_notice(self, timeout_ms: int) -> Notice | None:
        try:
            notice = self.notices.get(timeout=timeout_ms / 1000)
        except queue.Empty:
            return None
        if notice is None:
            raise JvmGone("gone")
        return notice

    def close_gate(self) -> None:
        self.gate_is_open = False

    def open_gate(self) -> None:
        self.gate_is_open = True

    def begin_effect(self, name: str) -> None:
        self.effects.append(name)

    def await_quiet(self, timeout_ms: int) -> bool:
        self.on_wait()
        if self.looks_before_submission > 0:
            self.looks_before_submission -= 1
            self.waited_ms += 15
            return True
        self.waited_ms += min(timeout_ms, self.drain_ms)
        self.drain_ms -= min(timeout_ms, self.drain_ms)
        if self.drain_ms == 0:
            self._change(lambda p: replace(p, state=State.FINISHED) if p.state is State.RUNNING else p)
        return self.drain_ms == 0

    def snapshot(self) -> str:
        return self.graph.to_json()

    def extract(self, base_uri: str, pipelines: Mapping[str, str], timeout_ms: int) -> Extraction:
        self.on_extract()
        self.extracted.append(list(pipelines))
        self.timeouts_ms.append(timeout_ms)
        written, not_written = [], []
        for number, each in enumerate(pipelines):
            if each in self.refuses or each in self.fails:
                reason = self.fails.get(each, "Spark calls its rows indeterminate")
                not_written.append(NotWritten(each, reason, refused=each in self.refuses))
            else:
                written.append(self._write(self.graph.pipelines[each], base_uri, f"f{number}"))
        return Extraction(tuple(written), tuple(not_written))

    def load(self, fragments: Mapping[str, Fragment]) -> None:
        self.loaded = dict(fragments)

    def report(self) -> Report:
        return Report(used={}, fallbacks=self.fallbacks)

    def living_process(self) -> int | None:
        return None

    def _write(self, pipeline: Pipeline, base_uri: str, name: str) -> Written:
        if not pipeline.finished:
            raise MoveFailed(f"{pipeline.id} has not finished")
        folder = Path(base_uri.removeprefix("file://"), name)
        folder.mkdir(parents=True)
        (folder / "rows").write_bytes(b"x" * min(pipeline.bytes, 1000))
        return Written(
            pipeline=pipeline.id,
            fingerprint=str(pipeline.fingerprint),
            kind=pipeline.kind,
            label=pipeline.operator,
            size_bytes=pipeline.bytes,
            rows=pipeline.rows,
            name=name,
            descriptor=b"made by the machine",
        )

    def _change(self, change: Callable[[Pipeline], Pipeline]) -> None:
        queries = (
            replace(query, pipelines=tuple(map(change, query.pipelines))) for query in self.graph.queries
        )
        self.graph = replace(self.graph, queries=tuple(queries))
