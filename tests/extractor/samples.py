"""Programs, manifests and stores for tests."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from godwit.extractor.job import JobFolder, Running
from godwit.extractor.manifest import Fragment, Manifest
from godwit.extractor.program import Module, Program
from godwit.extractor.store import Store, open_store
from godwit.planrewrite.select import Chosen, Skipped, StateSelection
from godwit.planrewrite.stagegraph import Kind

PROGRAM = Program(
    path="/jobs/etl.py",
    sha256="aa",
    args=("--day", "1"),
    modules=(Module("helpers", "helpers.py", "bb"), Module("shared", "/lib/shared.zip", "cc")),
    python_version="3.11.7",
    pyspark_version="4.3.0",
    distributions_sha256="dd",
    code_sha256="ee",
)

FRAGMENT = Fragment(
    fingerprint="0f" * 32,
    kind=Kind.SHUFFLE,
    label="Exchange hashpartitioning(a, 200)",
    bytes=1_000,
    rows=None,
    folder="blocks/1-1a2b3c4d/f0",
    descriptor=b"\x00\xff",
    pipeline="7.3",
)

MANIFEST = Manifest(
    job="etl",
    epoch=1,
    moves=1,
    written_at=1_700_000_000.5,
    spark_version="4.3.0",
    program=PROGRAM,
    sql_conf={"spark.sql.ansi.enabled": "true"},
    snapshot="{}",
    selection=StateSelection((Chosen("7.3", 1_000),), (Skipped("7.1", "nondeterministic"),)),
    fragments=(FRAGMENT,),
)

RUNNING = Running(
    epoch=1,
    pid=4711,
    host="worker-1",
    endpoint="http://127.0.0.1:4040",
    token="secret",
    started_at=1_700_000_000.0,
    program=PROGRAM,
    spark_conf={"spark.sql.shuffle.partitions": "8"},
)


def fragment(**facts: Any) -> Fragment:
    return replace(FRAGMENT, **facts)


def manifest(**facts: Any) -> Manifest:
    return replace(MANIFEST, **facts)


def new_store(folder: Path) -> Store:
    return open_store(str(folder / "store"), create=True)


def new_job(folder: Path, name: str = "etl") -> JobFolder:
    return JobFolder(new_store(folder), name)
