"""What `godwit sql` can know to be wrong it says before Spark starts."""

from pathlib import Path

import pytest

from godwit.extractor import sqljob
from godwit.extractor.errors import UsageError
from godwit.extractor.store import Store
from godwit.orchestrator.sql import distinct, free_output, read_text
from tests.orchestrator.conftest import Godwit


@pytest.fixture
def query(tmp_path: Path) -> Path:
    path = tmp_path / "q.sql"
    path.write_text("SELECT 1;\n")
    return path


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["missing.sql"], "cannot read missing.sql"),
        (["/"], "cannot read /"),
        (["q.sql", "--table", "t"], "--table t is not of the form NAME=PATH"),
        (["q.sql", "--table", "1t=x"], "--table 1t=x is not of the form NAME=PATH"),
        (["q.sql", "--table", "t=nowhere"], "table t: there is no nowhere; check its path"),
        (["q.sql", "--table", "t=q.sql", "--table", "t=q.sql"], "table t is given twice"),
        (["q.sql", "--table", "t=q.sql", "--table", "T=q.sql"], "table T is given twice"),
        (["q.sql", "--output", "q.sql"], "q.sql exists already; remove it, or choose another --output"),
    ],
)
def test_a_wrong_sql_is_64(
    godwit: Godwit, store: Store, query: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], says: str
) -> None:
    monkeypatch.chdir(query.parent)
    told = godwit("sql", "--store", store.uri, "--job", "q", *words)
    assert told.code == 64
    assert says in told.err


def test_an_empty_text_is_64(godwit: Godwit, store: Store, query: Path) -> None:
    query.write_text(" ;\n")
    told = godwit("sql", "--store", store.uri, "--job", "q", query)
    assert told.code == 64
    assert "holds no SQL" in told.err


@pytest.mark.parametrize(
    ("text", "says"),
    [("SELECT '\0'", "holds a zero byte"), (f"SELECT '{'x' * 100_001}'", "has 100,010 bytes")],
)
def test_a_text_that_cannot_be_passed_on_is_64(
    godwit: Godwit, store: Store, query: Path, text: str, says: str
) -> None:
    query.write_text(text)
    told = godwit("sql", "--store", store.uri, "--job", "q", query)
    assert told.code == 64
    assert says in told.err


def test_a_closed_standard_input_is_64(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(UsageError, match="cannot read -: it is closed"):
        read_text("-")


@pytest.mark.parametrize("text", ["--x\nSELECT\n1", "--table=x\nSELECT 1 AS a"])
def test_a_text_may_begin_with_a_comment(text: str) -> None:
    assert sqljob.arguments().parse_args([f"--sql={text}"]).sql == text


def test_the_semicolon_at_the_end_is_not_sparks_business(query: Path) -> None:
    assert read_text(str(query)) == "SELECT 1"


def test_paths_are_absolute_so_that_another_folder_is_no_other_program(
    query: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(query.parent)
    assert distinct(("t=q.sql", "far=s3a://b/t", "url=file:///")) == [
        f"t={query}",
        "far=s3a://b/t",
        "url=file:///",
    ]
    assert free_output("out") == f"{query.parent}/out"


def test_what_an_interrupted_write_left_may_be_replaced_and_rows_may_not(
    godwit: Godwit, store: Store, query: Path
) -> None:
    output = query.parent / "out.csv"
    (output / "_temporary" / "0").mkdir(parents=True)
    assert free_output(str(output)) == str(output)
    (output / "part-00000.csv").touch()
    assert godwit("sql", "--store", store.uri, "--job", "q", query, "--output", output).code == 64
