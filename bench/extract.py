"""How fast are the rows of a finished stage carried out, and read back in, compared with just reading them?

One shuffle stage of `--mb` is computed, and the query waits behind it. Its blocks are extracted to local disk
(raw), and, for comparison, recompressed from lz4 to zstd; then the query goes on and reads the stage into
Spark's `noop` sink, which is the yardstick. The same query, resumed, reads the stored exchange into `noop`,
checksums verified. A third one writes the same rows as Parquet (zstd). Medians over the rounds; a ratio is
that of two times of one round.

    python -m bench.extract [--mb 500] [--rounds 9] [--json]
"""

import shutil
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.drivers import arguments, bench, driver, machine, print_figures, say, scratch, table
from godwit.extractor import decide
from godwit.extractor.manifest import Fragment
from godwit.planrewrite.stagegraph import Kind, Pipeline, State

CORES = 2
MAPPERS, PARTITIONS = 16, 32
SAMPLE_ROWS = 400_000
COLUMNS = (
    "id",
    "pmod(xxhash64(id), 1000003) AS key",
    "CAST(pmod(xxhash64(id, 1), 10000000) / 100 AS DECIMAL(12, 2)) AS price",
    "concat('Customer#', lpad(id % 150000, 9, '0')) AS name",
    "date_add(DATE'1992-01-01', CAST(pmod(xxhash64(id, 2), 2500) AS INT)) AS shipped",
    "substr(md5(CAST(id AS STRING)), 1, 20) AS comment",
)


@dataclass(frozen=True)
class Round:
    stage_bytes: int
    noop_seconds: float  # Spark's job that reads the stage into noop
    extract_seconds: float  # the agent's call, from Python and back
    recompress_seconds: float
    recompressed_bytes: int
    read_back_seconds: float  # Spark's job that reads the stored exchange into noop
    read_back_query_seconds: float  # the whole resumed query, planning included
    parquet_seconds: float  # Spark's job that reads the stage and writes Parquet
    parquet_bytes: int


def sample_bytes(rows: int) -> int:
    """In the driver: how large the stage is with this many rows."""
    here = bench()
    with here.stopped(lambda: into_noop(frame(rows)), stages=1):
        return the_stage().bytes


def one_round(rows: int, folder: Path) -> Round:
    """In the driver."""
    here = bench()
    shutil.rmtree(folder, ignore_errors=True)
    with here.stopped(lambda: into_noop(frame(rows)), stages=1):
        stage = the_stage()
        extract_seconds, fragments = extracted(stage, f"file://{folder}/raw")
        recompress_seconds = recompressed(folder / "zstd")
    noop_seconds = last_job_seconds()
    read_back_query_seconds = read_back(rows, fragments)
    read_back_seconds = last_job_seconds()
    frame(rows).write.option("compression", "zstd").parquet(str(folder / "parquet"))
    return Round(
        stage.bytes, noop_seconds, extract_seconds,
        recompress_seconds, size_of(folder / "zstd"),
        read_back_seconds, read_back_query_seconds,
        last_job_seconds(), size_of(folder / "parquet"),
    )  # fmt: skip


def frame(rows: int) -> Any:
    source = bench().spark.range(0, rows, 1, MAPPERS)
    return source.selectExpr(*COLUMNS).repartition(PARTITIONS, "key")


def into_noop(rows: Any) -> None:
    rows.write.format("noop").mode("overwrite").save()


def the_stage() -> Pipeline:
    pipelines = bench().graph().pipelines.values()
    (stage,) = (each for each in pipelines if each.kind is Kind.SHUFFLE and each.state is State.FINISHED)
    return stage


def extracted(stage: Pipeline, base_uri: str) -> tuple[float, dict[str, Fragment]]:
    started = time.perf_counter()
    extraction = bench().jvm.extract(base_uri, {stage.id: str(stage.fingerprint)}, timeout_ms=300_000)
    seconds = time.perf_counter() - started
    if extraction.not_written:
        raise RuntimeError(f"not extracted: {extraction.not_written}")
    return seconds, {
        f"{base_uri}/{each.name}": decide.fragment(each, "blocks/1-0", bench().graph(), {})
        for each in extraction.written
    }


def read_back(rows: int, fragments: dict[str, Fragment]) -> float:
    jvm = bench().jvm
    jvm.load(fragments)
    started = time.perf_counter()
    into_noop(frame(rows))
    seconds = time.perf_counter() - started
    report = jvm.report()
    jvm.load({})
    if not report.used or report.fallbacks:
        raise RuntimeError(f"the stored exchange was not read: {report}")
    return seconds


def recompressed(target: Path) -> float:
    """The newest shuffle's files hold the same blocks: lz4 out, zstd in, a thread per core."""
    target.mkdir()
    files = list(bench_local().rglob("shuffle_*.data"))
    newest = max(map(shuffle_id, files))
    blocks = [file for file in files if shuffle_id(file) == newest]
    started = time.perf_counter()
    with ThreadPoolExecutor(CORES) as threads:
        list(threads.map(lambda file: recompress(file, target), blocks))
    return time.perf_counter() - started


def recompress(file: Path, target: Path) -> None:
    java, conf = bench().java, bench().spark.sparkContext._jsc.sc().conf()
    source = java.org.apache.spark.io.LZ4CompressionCodec(conf).compressedInputStream(
        java.java.io.FileInputStream(str(file))
    )
    sink = java.org.apache.spark.io.ZStdCompressionCodec(conf).compressedOutputStream(
        java.java.io.FileOutputStream(str(target / file.name))
    )
    java.org.apache.hadoop.io.IOUtils.copyBytes(source, sink, 1 << 16, True)


def bench_local() -> Path:
    return Path(bench().spark.sparkContext.getConf().get("spark.local.dir", ""))


def shuffle_id(file: Path) -> int:
    return int(file.name.split("_")[1])


def last_job_seconds() -> float:
    spark_context = bench().spark.sparkContext._jsc.sc()
    spark_context.listenerBus().waitUntilEmpty()
    jobs = spark_context.statusStore().jobsList(None)
    last = max((jobs.apply(index) for index in range(jobs.size())), key=lambda job: job.jobId())
    started_ms, ended_ms = (time.get().getTime() for time in (last.submissionTime(), last.completionTime()))
    return float(ended_ms - started_ms) / 1000


def size_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def medians(rounds: list[Round]) -> dict[str, float]:
    plain = [asdict(each) for each in rounds]
    return {name: statistics.median(each[name] for each in plain) for name in plain[0]}


def over_noop(rounds: list[Round], name: str) -> float:
    return statistics.median(float(asdict(each)[name]) / each.noop_seconds for each in rounds)


def ways(rounds: list[Round]) -> list[tuple[object, ...]]:
    """A row for each way to carry the stage's rows: megabytes are what is stored, the rate is the stage's."""
    m = medians(rounds)
    stage = m["stage_bytes"]
    found = (
        ("noop read", "noop_seconds", stage),
        ("raw extraction", "extract_seconds", stage),
        ("recompressed (zstd)", "recompress_seconds", m["recompressed_bytes"]),
        ("Parquet (zstd)", "parquet_seconds", m["parquet_bytes"]),
        ("read back", "read_back_seconds", stage),
        ("read back, whole query", "read_back_query_seconds", stage),
    )
    return [
        (way, m[name], f"{size / 1e6:.0f}", over_noop(rounds, name), f"{stage / 1e6 / m[name]:.0f}")
        for way, name, size in found
    ]


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--mb", type=float, default=500.0, help="size of the stage (default 500)")
    parser.add_argument("--rounds", type=int, default=9)
    asked = parser.parse_args()
    before = machine()
    with scratch() as folder, driver("extract", folder) as spark:
        rows = int(SAMPLE_ROWS * asked.mb * 1e6 / spark.ask(sample_bytes, SAMPLE_ROWS))
        spark.ask(one_round, rows, folder / "warm")
        rounds = []
        for number in range(asked.rounds):
            rounds.append(spark.ask(one_round, rows, folder / "round"))
            say(f"round {number + 1}: {rounds[-1]}")
    m = medians(rounds)
    figures = {
        "extract_over_noop": round(over_noop(rounds, "extract_seconds"), 3),
        "read_back_over_noop": round(over_noop(rounds, "read_back_seconds"), 3),
        "medians": m,
        "rounds": [asdict(each) for each in rounds],
        **before,
    }
    columns = ("way", "seconds", "MB", "over noop", "stage MB/s")
    title = f"one stage of {m['stage_bytes'] / 1e6:.0f} MB"
    print_figures(figures, asked.json, [table(title, columns, ways(rounds))])


if __name__ == "__main__":
    main()
