"""The queries live in a JVM, the agent in Python; between them is a socket that speaks py4j.

This is the only module that knows. To the rest of the room the JVM is the few verbs of `facade.Jvm`. Each
Python thread has a connection, and a JVM thread, of its own: the agent's calls neither wait for the
program's nor disturb what the program's thread has set in Spark.
"""

import functools
import json
import os
import zlib
from base64 import b64decode
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from godwit.extractor.errors import MoveFailed, OtherVersion
from godwit.extractor.facade import (
    Extraction,
    JvmGone,
    Notice,
    Report,
    load_request,
    parse_extraction,
    parse_report,
)
from godwit.extractor.manifest import Fragment
from godwit.extractor.workercode import Surroundings

JARS = Path(__file__).parent / "jars"


class SparkJvm:
    """The JVM behind pyspark's gateway. Its other end is the Scala object `Agent`."""

    def __init__(self, gateway: Any) -> None:
        self._agent = gateway.jvm.org.apache.spark.sql.godwit.Agent
        self._system = gateway.jvm.java.lang.System
        self._child = gateway.proc  # None under spark-submit, where the JVM is the parent
        self._parent = os.getppid()

    def surroundings(self) -> Surroundings:
        python_path = self._system.getenv("PYTHONPATH")
        return Surroundings(self._system.getProperty("user.dir"), python_path or "")

    def start(self, context: Any, stop_after_stages: int | None, grace_ms: int) -> None:
        options = {"stop_after_stages": stop_after_stages, "grace_ms": grace_ms}
        self._call("start", context._jsc, json.dumps(options))

    def sees(self, uri: str) -> bool:
        return bool(self._call("sees", uri))

    def end(self) -> None:
        # Under spark-submit the JVM waits for this process, and ends with its exit code.
        if self._child is not None:
            self._call("end")

    def pinned(self) -> Mapping[str, str]:
        pinned: dict[str, str] = json.loads(self._call("pinned"))
        return pinned

    def await_notice(self, timeout_ms: int) -> Notice | None:
        told = self._call("awaitNotice", timeout_ms)
        return Notice(**json.loads(told)) if told else None

    def close_gate(self) -> None:
        self._call("closeGate")

    def open_gate(self) -> None:
        self._call("openGate")

    def begin_effect(self, name: str) -> None:
        self._call("beginEffect", name)

    def await_quiet(self, timeout_ms: int) -> bool:
        return bool(self._call("awaitQuiet", timeout_ms))

    def snapshot(self) -> str:
        return zlib.decompress(b64decode(self._call("snapshot"))).decode()

    def extract(self, base_uri: str, pipelines: Mapping[str, str], timeout_ms: int) -> Extraction:
        wanted = [{"id": each, "fingerprint": print_} for each, print_ in pipelines.items()]
        request = {"base": base_uri, "pipelines": wanted, "timeout_ms": timeout_ms}
        return parse_extraction(self._call("extract", json.dumps(request)))

    def load(self, fragments: Mapping[str, Fragment]) -> None:
        self._call("load", load_request(fragments))

    def report(self) -> Report:
        return parse_report(self._call("report"))

    def rehearse(self, base_uri: str) -> None:
        """Moves a small query of its own out and in: what has run once is quick when it matters."""
        self._call("rehearse", SparkSession.builder.getOrCreate()._jsparkSession, base_uri)

    def stop_rehearsal(self) -> None:
        self._call("stopRehearsal")

    def living_process(self) -> int | None:
        if self._child is not None:
            return self._child.pid if self._child.poll() is None else None
        return self._parent if os.getppid() == self._parent else None

    def _call(self, name: str, *args: Any) -> Any:
        try:
            return getattr(self._agent, name)(*args)
        except Py4JNetworkError as error:
            raise JvmGone("the driver's JVM does not answer any more") from error
        except (Py4JError, PySparkException) as error:
            raise MoveFailed(f"Spark says: {reason(error)}") from error


def connect(gateway: Any) -> tuple[SparkJvm, str]:
    """The driver's JVM with Godwit's classes in it, and the jar that they are in, for the executors.

    The context class loader is Spark's own, which takes further jars, under `python` and `spark-submit`.
    """
    spark = getattr(getattr(gateway.jvm.org.apache.spark, "package$"), "MODULE$")
    jar = find_jar(JARS, spark.SPARK_VERSION())
    loader = gateway.jvm.Thread.currentThread().getContextClassLoader()
    loader.addURL(gateway.jvm.java.io.File(str(jar)).toURI().toURL())
    return SparkJvm(gateway), str(jar)


def find_jar(folder: Path, spark_version: str) -> Path:
    """Spark's internals change with its minor version: there is a jar for each that is supported."""
    minor = ".".join(spark_version.split(".")[:2])
    jar = folder / f"godwit-spark-{minor}.jar"
    if not jar.is_file():
        supported = sorted(path.stem.removeprefix("godwit-spark-") for path in folder.glob("*.jar"))
        raise OtherVersion(
            f"Godwit does not know Spark {spark_version}",
            next_step=f"use Spark {' or '.join(supported) or '(none: no jar is installed)'}",
        )
    return jar


def reason(error: Exception) -> str:
    """The first line of what Java said, without the stack."""
    said = str(error.java_exception.toString()) if isinstance(error, Py4JJavaError) else str(error)
    return said.strip().splitlines()[0] if said.strip() else type(error).__name__


def launch(conf: Mapping[str, str]) -> Any:
    """The gateway to a JVM with this conf, as far as whoever started this process said nothing else."""
    wanted = SparkConf(loadDefaults=False).setAll(list(conf.items()))
    SparkContext._ensure_initialized(conf=wanted)
    return SparkContext._gateway


def new_context() -> SparkContext:
    return SparkSession.builder.getOrCreate().sparkContext


def let_program_replace(context: SparkContext) -> None:
    """Most programs ask for the present session and get the warm one. One that makes its SparkContext itself
    must not be told that there is one already: it gets its own, cold."""
    real = SparkContext.__init__

    @functools.wraps(real)
    def init(self: SparkContext, *args: Any, **kwargs: Any) -> None:
        SparkContext.__init__ = real  # type: ignore[method-assign]
        if SparkContext._active_spark_context is context:
            context.stop()
        real(self, *args, **kwargs)

    SparkContext.__init__ = init  # type: ignore[method-assign]
