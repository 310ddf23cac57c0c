"""How the program behind `godwit sql` tells formats and places apart."""

from pathlib import Path

import pytest

from godwit.extractor.sqljob import format_by_name, input_format, local_path, visible


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("t.parquet", "parquet"),
        ("t.csv", "csv"),
        ("t.csv.gz", "csv"),
        ("t.json", "json"),
        ("t.jsonl", "json"),
        ("t.ndjson", "json"),
        ("s3a://bucket/t.csv", "csv"),
        ("t", None),
        ("t.v2", None),
    ],
)
def test_a_format_is_told_by_the_ending(name: str, kind: str | None) -> None:
    assert format_by_name(name) == kind


@pytest.mark.parametrize("ending", ["parquet", "csv", "json"])
def test_the_format_of_a_folder_is_told_by_the_files_in_it(tmp_path: Path, ending: str) -> None:
    (tmp_path / "day=1").mkdir()
    (tmp_path / "_SUCCESS").touch()
    (tmp_path / "day=1" / f"part-0.{ending}").touch()
    assert input_format(str(tmp_path)) == ending
    assert input_format(f"file://{tmp_path}") == ending


def test_a_folder_that_is_called_like_a_file_is_none(tmp_path: Path) -> None:
    """It may be a partition by the names of files."""
    (tmp_path / "src=a.csv").mkdir()
    (tmp_path / "src=a.csv" / "part-0.parquet").touch()
    assert input_format(str(tmp_path)) == "parquet"


def test_the_ending_of_a_folder_goes_before_what_is_in_it(tmp_path: Path) -> None:
    folder = tmp_path / "t.json"
    folder.mkdir()
    (folder / "readme.csv").touch()
    assert input_format(str(folder)) == "json"


def test_where_nothing_tells_it_is_parquet(tmp_path: Path) -> None:
    assert input_format(str(tmp_path)) == input_format("s3a://bucket/t") == "parquet"


def test_an_address_elsewhere_is_no_path() -> None:
    assert local_path("s3a://bucket/t") is None
    assert local_path("file:///a%20b") == Path("/a b")
    assert local_path("a b") == Path("a b")


def test_a_value_neither_breaks_its_line_nor_speaks_to_the_terminal() -> None:
    assert visible("x\ty\nz\x07 \x1b[31m") == r"x\ty\nz\x07 \x1b[31m"
    assert visible("Ærø 100 %") == "Ærø 100 %"
