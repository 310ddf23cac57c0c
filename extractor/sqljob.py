"""A question in SQL over a few files is no program, yet it takes as long as one and should be moved like one.

This is the program behind `godwit sql`: plain PySpark, switched on by the environment like any other, that
says when it begins to print. The SQL text itself is an argument, so that another text is another program and
never meets this one's state.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from rich.console import Console
from rich.table import Table
from rich.text import Text

from godwit.extractor.activate import program_has_answered
from godwit.extractor.errors import UsageError
from godwit.extractor.process import die, say

if TYPE_CHECKING:
    from pyspark.errors import PySparkException
    from pyspark.sql import DataFrame, SparkSession

FAILED = 1
"""Python's own exit code for a program that failed."""

FORMATS = {".parquet": "parquet", ".csv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json"}
READ_OPTIONS = {"parquet": {}, "csv": {"header": "true", "inferSchema": "true"}, "json": {}}
WRITE_OPTIONS = {"parquet": {}, "csv": {"header": "true"}, "json": {"ignoreNullFields": "false"}}


def main(argv: list[str]) -> None:
    from pyspark.errors import PySparkException

    asked = arguments().parse_args(argv)
    try:
        answer(asked)
    except PySparkException as error:
        tell(error, asked.json)
        sys.exit(FAILED)


def answer(asked: argparse.Namespace) -> None:
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.appName("godwit sql").getOrCreate()
    for name, _, path in (table.partition("=") for table in asked.table):
        register(spark, name, path)
    frame = spark.sql(asked.sql)
    if asked.output:
        write(frame, asked.output)
    elif asked.json:
        print_json_lines(frame)
    else:
        print_table(frame)
    spark.stop()


def tell(error: PySparkException, as_json: bool) -> None:
    """One line, as from every command; Spark's own has the position and the plan behind it."""
    said = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
    next_step = "mend the SQL text, or the tables that it was given"
    if as_json:
        print(json.dumps({"error": said, "next_step": next_step, "exit_code": FAILED}), file=sys.stderr)
    else:
        say(f"{said}; {next_step}")


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="godwit sql")
    parser.add_argument("--sql", required=True, help="the SQL text itself")
    parser.add_argument("--table", action="append", default=[], metavar="NAME=PATH")
    parser.add_argument("--output", metavar="PATH")
    parser.add_argument("--json", action="store_true")
    return parser


def register(spark: SparkSession, name: str, path: str) -> None:
    kind = input_format(path)
    spark.read.options(**READ_OPTIONS[kind]).format(kind).load(path).createOrReplaceTempView(name)


def write(answer: DataFrame, path: str) -> None:
    kind = format_by_name(path) or "parquet"
    # A move in the middle of the write leaves a half-written folder, which the next process must replace.
    # `godwit sql` has seen that a local folder holds no rows; elsewhere nobody looked: nothing is replaced.
    mode = "overwrite" if local_path(path) else "errorifexists"
    answer.write.options(**WRITE_OPTIONS[kind]).format(kind).mode(mode).save(path)


def print_json_lines(answer: DataFrame) -> None:
    from pyspark.sql import functions as f

    if twice := sorted({name for name in answer.columns if answer.columns.count(name) > 1}):
        die(
            UsageError(f"two columns are called {twice[0]}", next_step="give each a name of its own, with AS")
        )
    lines = answer.select(f.to_json(f.struct("*"), {"ignoreNullFields": "false"}).alias("line"))
    rows = lines.collect()
    # A move never leaves half an answer on stdout.
    program_has_answered()
    for row in rows:
        print(row["line"])


def print_table(answer: DataFrame) -> None:
    table = Table()
    for name in answer.columns:
        table.add_column(Text(visible(name)))
    for row in as_text(answer).collect():
        table.add_row(*(Text("NULL", "dim") if value is None else Text(visible(value)) for value in row))
    program_has_answered()
    # A pipe has no width: nothing may be folded or cut there.
    Console(width=None if sys.stdout.isatty() else 100_000).print(table)


def as_text(answer: DataFrame) -> DataFrame:
    """As Spark itself writes them: it has dates and intervals that Python has not."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import BinaryType

    names = [f"c{number}" for number in range(len(answer.columns))]
    binary = [isinstance(field.dataType, BinaryType) for field in answer.schema]
    return answer.toDF(*names).select(
        *(
            f.hex(name) if hexed else f.col(name).cast("string")
            for name, hexed in zip(names, binary, strict=True)
        )
    )


def visible(text: str) -> str:
    """A row is a line, and nothing in it speaks to the terminal."""
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)


def input_format(path: str) -> str:
    """Parquet, CSV or JSON: told by the path's own ending, else by the first file beneath it that has one."""
    folder = local_path(path)
    beneath = folder.rglob("*.*") if folder and folder.is_dir() else ()
    # A folder's name may be a value of a partition's column, and that a file's name.
    names = [path, *sorted(each.name for each in beneath if each.is_file())]
    return next(filter(None, map(format_by_name, names)), "parquet")


def format_by_name(path: str) -> str | None:
    """The last known ending counts, so that `rows.csv.gz` is CSV."""
    return next((FORMATS[suffix] for suffix in reversed(Path(path).suffixes) if suffix in FORMATS), None)


def local_path(path: str) -> Path | None:
    """The path on this machine, or None for an address elsewhere (`s3a://...`)."""
    parts = urlsplit(path)
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    return None if "://" in path else Path(path)


if __name__ == "__main__":
    main(sys.argv[1:])
