"""The parts of the demonstration that need no Spark; the whole is in tests/e2e."""

import io
import sys
from pathlib import Path

import pytest

from godwit.orchestrator import tpch
from godwit.orchestrator.acts import Answer
from godwit.orchestrator.demo import compare, summary
from godwit.orchestrator.launch import Launch
from godwit.orchestrator.migrate import Moved
from godwit.orchestrator.observe import Observation
from godwit.orchestrator.pools import Pool, PoolFailed
from godwit.orchestrator.stage import Stage
from godwit.planrewrite.select import select
from tests.orchestrator.conftest import Godwit
from tests.orchestrator.live import HALF_WAY

MOVED = Moved("move", stages_kept=3, stages_recomputed=1, bytes=20_000_000, vacate_seconds=0.51)
ROWS = [["ALGERIA", "1998", "27136900.1803"], ["ALGERIA", "1997", "48611833.4962"]]


def test_what_is_saved_is_the_restart_less_the_move() -> None:
    outcome = compare(Answer(ROWS, 12.0), MOVED, Answer(ROWS, 7.5))
    assert outcome.rows_equal
    assert summary(outcome) == [
        ("rows", "2, equal to the uninterrupted run's"),
        ("finished stages kept", "3 of the 4 still needed"),
        ("bytes moved", "20.0 MB"),
        ("spot pool vacated in", "0.51 s, running stages finished first"),
        ("from the notice to the last row", "7.5 s"),
        ("the same by a restart", "12.0 s, on the same warm pool"),
        ("saved", "4.5 s (38%)"),
    ]


@pytest.mark.parametrize("wrong", [ROWS[:1], ROWS[::-1], [], [*ROWS, ROWS[0]]])
def test_other_rows_are_not_called_equal(wrong: list[list[str]]) -> None:
    outcome = compare(Answer(ROWS, 12.0), MOVED, Answer(wrong, 7.5))
    assert not outcome.rows_equal
    assert "NOT EQUAL" in summary(outcome)[0][1]


def test_the_tables_are_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GODWIT_CACHE", str(tmp_path))
    folder = tpch.tables(0.01)
    assert sorted(table.name for table in folder.iterdir()) == [
        "customer", "lineitem", "nation", "orders", "part", "partsupp", "region", "supplier"
    ]  # fmt: skip
    made_at = (folder / "lineitem").stat().st_mtime_ns
    assert (tpch.tables(0.01) / "lineitem").stat().st_mtime_ns == made_at
    assert [path.name for path in folder.parent.iterdir()] == ["tpch-sf0.01"]


def test_the_query_is_tpchs_own() -> None:
    text = tpch.query(21)
    assert text.upper().startswith("SELECT")
    assert "numwait" in text


def test_without_duckdb_the_demo_says_what_to_install(
    godwit: Godwit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GODWIT_CACHE", str(tmp_path))
    monkeypatch.setitem(sys.modules, "duckdb", None)
    told = godwit("demo")
    assert told.code == 64
    assert told.err.splitlines()[-1].endswith("pip install duckdb==1.5.5 duckdb-extension-tpch==1.5.5")
    assert list((tmp_path / "demo").iterdir()) == []


def started(folder: Path, program: str) -> Pool:
    path = folder / "program.py"
    path.write_text(program)
    pool = Pool("spot", 2, folder / "spot.log")
    # No name, no job: nothing of Godwit is switched on in it.
    pool.start(Launch(f"file://{folder}", ""), [str(path)])
    return pool


def test_a_pool_is_watched_until_something_is_seen(tmp_path: Path) -> None:
    pool = started(tmp_path, "import time; print('ready', flush=True); time.sleep(60)")
    assert pool.until(lambda: pool.said("ready"))
    pool.stop()
    assert pool.exit_code() == -9


def test_what_a_pool_did_before_its_end_counts(tmp_path: Path) -> None:
    pool = started(tmp_path, "print('ready')")
    pool.exit_code()
    assert pool.until(lambda: pool.said("ready"))


def test_a_pool_that_ends_too_early_shows_its_last_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pool = started(tmp_path, "raise SystemExit('no Java')")
    with pytest.raises(PoolFailed, match="the spot pool ended with exit code 1"):
        pool.until(lambda: pool.said("ready"))
    assert "no Java" in capsys.readouterr().err


def test_without_a_terminal_each_thing_that_happens_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pool = Pool("spot", 2, tmp_path / "log")
    with Stage() as stage:
        stage.title("1 of 2")
        stage.enter(pool)
        for doing in ("starts Spark", "starts Spark", "warm"):
            stage.tell(pool, doing)
        stage.show(Observation(HALF_WAY, select(HALF_WAY)))
    assert capsys.readouterr().err.splitlines() == ["1 of 2", "  spot: starts Spark", "  spot: warm"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_on_a_terminal_the_pools_and_the_stage_graph_are_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    pool = Pool("spot", 2, tmp_path / "log")
    with Stage() as stage:
        stage.enter(pool)
        stage.tell(pool, "warm")
        stage.show(Observation(HALF_WAY, select(HALF_WAY)))
    seen = terminal.getvalue()
    assert "2 cores" in seen
    assert "warm" in seen
    assert "7.1 shuffle" in seen
