"""Tests of a fingerprint that would pass with a wrong fingerprint prove nothing.

So bugs are seeded into the encoder, one at a time, in a copy of the sources: each must make a test fail. One
that lives is a hole in the tests. A copy without a bug goes first: there all tests must pass.

    python -m tests.spark.mutants [NAME ...]
"""

import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROOMS = ("planrewrite", "extractor", "orchestrator")
TESTS = tuple(f"tests/spark/test_{name}.py" for name in ("negatives", "corrections", "caches"))


@dataclass(frozen=True)
class Bug:
    file: str
    right: str
    wrong: str


ENCODING, FINGERPRINT, SETTINGS = "Encoding.scala", "Fingerprint.scala", "Settings.scala"
SIDE_BY_SIDE = 2

BUGS = {
    "a literal's value is dropped": Bug(ENCODING, "+ q(typed(l.value, l.dataType))", ""),
    "a literal's type is dropped": Bug(ENCODING, '"L" + q(l.dataType.json) +', '"L" +'),
    "a sort's direction is dropped": Bug(ENCODING, "s.direction.sql + s.nullOrdering.sql", '""'),
    "an attribute is any of its type": Bug(
        ENCODING, '"@" + origin(a) + q(a.dataType.json)', '"@" + q(a.dataType.json)'
    ),
    "a subtraction commutes": Bug(
        ENCODING, "_: And | _: Or | _: EqualTo |", "_: Subtract | _: And | _: Or | _: EqualTo |"
    ),
    "sums are associative": Bug(
        ENCODING, "case _: And | _: Or | _: BitwiseAnd |", "case _: Add | _: And | _: Or | _: BitwiseAnd |"
    ),
    "a comparison's sides are the same": Bug(
        ENCODING, 'q(if (name.startsWith("Greater"))', 'q(if (true) name else if (name.startsWith("Greater"))'
    ),
    "a Python function's code is dropped": Bug(ENCODING, "q(bytes(command)) +", ""),
    "a Python function's broadcast values are dropped": Bug(
        ENCODING, "broadcasts.map(b => q(fileDigest(b.value.path)))", 'broadcasts.map(_ => q(""))'
    ),
    "a distinct aggregate is like any": Bug(ENCODING, "a.mode + a.isDistinct", "a.mode"),
    "a join's type is dropped": Bug(FINGERPRINT, '"JOIN" + value(joinType)', '"JOIN"'),
    "a sort beneath a sample is ignored": Bug(
        FINGERPRINT,
        "_: InputAdapter | _: ColumnarToRowExec => layout(",
        "_: InputAdapter | _: SortExec | _: ColumnarToRowExec => layout(",
    ),
    "a sample sees rows, not their order": Bug(
        FINGERPRINT, "| _: SampleExec => node(p, layout)", "| _: SampleExec => node(p, rows)"
    ),
    "a random number's place is ignored": Bug(
        FINGERPRINT, "if (p.expressions.exists(LayoutSensitive.within)) layout else rows", "rows"
    ),
    "columns have no names under pandas": Bug(
        FINGERPRINT, "_: FlatMapCoGroupsInPandasExec => names(p) +", "_: FlatMapCoGroupsInPandasExec =>"
    ),
    "random numbers in a list commute": Bug(ENCODING, "case i: In if i.deterministic =>", "case i: In =>"),
    "operands beside a random number commute": Bug(
        ENCODING, "case _ if e.deterministic && operator(e)", "case _ if operator(e)"
    ),
    "a file has a name above a shuffle": Bug(
        FINGERPRINT,
        "def within(e: Expression): Boolean = e.exists(knows)",
        "def within(e: Expression): Boolean = e.exists(x => knows(x) && !x.isInstanceOf[InputFileName])",
    ),
    "a cached table's order is dropped": Bug(FINGERPRINT, " + cached(plan) + order(plan)", " + cached(plan)"),
    "a cached table's settings are dropped": Bug(
        FINGERPRINT, "q(Settings.of(plan.session)) + hearing", "hearing"
    ),
    "greatest values commute": Bug(
        ENCODING,
        "_: BitwiseXor => Some(e.getClass.getName)",
        "_: BitwiseXor | _: Greatest => Some(e.getClass.getName)",
    ),
    "a function may count in an accumulator": Bug(ENCODING, "refuseAccumulators(command)", ""),
    "files on the executors are dropped": Bug(ENCODING, " + q(shipped) +", " +"),
    "the environment of Python is dropped": Bug(ENCODING, "+ unordered(variables)", ""),
    "a sort beneath groups is ignored": Bug(
        FINGERPRINT, "=> names(p) + sorted(p) + node(p, rows)", "=> names(p) + node(p, rows)"
    ),
    "values that tie are equal": Bug(FINGERPRINT, "case s: StringType => !s.supportsBinaryEquality", ""),
    "settings of the run do not count": Bug(
        FINGERPRINT, "if (planned.settings != settings) Left", "if (false) Left"
    ),
    "settings of Hadoop are dropped": Bug(
        SETTINGS, " ++ changed(session.sparkContext.hadoopConfiguration)", ""
    ),
    "settings of file formats are dropped": Bug(
        SETTINGS, 'else !key.startsWith("spark.") && !secret(key)', "else false"
    ),
    "a partition's values are dropped": Bug(FINGERPRINT, "${row(d.values, values)}|", ""),
    "settings are dropped": Bug(
        FINGERPRINT, "types(s) + settings + rows(s.child)", "types(s) + rows(s.child)"
    ),
    "a file's time is dropped": Bug(FINGERPRINT, "|${s.getModificationTime}", ""),
    "what a thread was told is dropped": Bug(ENCODING, "unordered(told) + ", ""),
    "a cached table may have been filled under any settings": Bug(
        FINGERPRINT,
        "CacheBuilds.problem(planned.caches).toLeft(()).flatMap(_ => planned.print)",
        "planned.print",
    ),
    "a partitioning is dropped": Bug(
        FINGERPRINT, '"SHUFFLE" + arguments(s, value(s.outputPartitioning))', '"SHUFFLE"'
    ),
}


def mutant(folder: Path, bug: Bug | None) -> None:
    """The sources with the bug in them, compiled."""
    for name in (*ROOMS, "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "jars"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    packages = folder / "build" / "dev" / "godwit"
    packages.mkdir(parents=True)
    for room in ROOMS:
        (packages / room).symlink_to(folder / room)
    if bug is not None:
        source = folder / "planrewrite" / "scala" / bug.file
        text = source.read_text()
        assert text.count(bug.right) == 1, f"{bug.file} does not have exactly one {bug.right!r}"
        source.write_text(text.replace(bug.right, bug.wrong))
    # The mutant's jar is of no use to anybody else.
    environment = {**os.environ, "GODWIT_CACHE": str(folder / "cache")}
    compiler = [
        sys.executable,
        str(folder / "extractor" / "scala" / "jar.py"),
        str(folder / "extractor" / "jars"),
    ]
    subprocess.run(compiler, env=environment, check=True, stdout=subprocess.DEVNULL)


def killer(bug: Bug | None) -> str | None:
    """The first test that fails; None if all pass."""
    with tempfile.TemporaryDirectory(prefix="godwit-mutant-") as folder:
        mutant(Path(folder), bug)
        return first_failure(Path(folder))


def first_failure(folder: Path) -> str | None:
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *TESTS],
        cwd=folder, env={**os.environ, "PYTHONPATH": str(folder / "build" / "dev")},
        capture_output=True, text=True,
    )  # fmt: skip
    failed = [line for line in ended.stdout.splitlines() if line.startswith("FAILED ")]
    if ended.returncode == 1 and failed:
        return failed[0].removeprefix("FAILED ").partition(" - ")[0]
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return None


def main() -> int:
    names = sys.argv[1:] or list(BUGS)
    if failed := killer(None):
        print(f"without any bug {failed} fails")
        return 1
    alive = []
    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        for name, caught in zip(names, pool.map(lambda name: killer(BUGS[name]), names), strict=True):
            print(f"{name}: {f'caught by {caught}' if caught else 'LIVES'}", flush=True)
            alive += [] if caught else [name]
    print(f"{len(names) - len(alive)} of {len(names)} bugs caught")
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main())
