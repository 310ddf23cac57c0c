"""Generated data are there as a whole or not at all, and are the same wherever they are generated."""

import hashlib
from pathlib import Path

import pytest

from tests.tpc import data


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GODWIT_CACHE", str(tmp_path))
    return tmp_path / "data"


def digests(folder: Path) -> dict[str, str]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def test_a_large_table_is_several_files(cache: Path) -> None:
    folder = data.tpch(0.01)
    assert folder == cache / "tpch-sf0.01"
    assert len(list((folder / "lineitem").iterdir())) == 4
    assert len(list((folder / "nation").iterdir())) == 1
    assert [table.name for table in data.tables(folder)] == [
        "customer", "lineitem", "nation", "orders", "part", "partsupp", "region", "supplier"
    ]  # fmt: skip


def test_data_that_are_there_are_not_generated_again(cache: Path) -> None:
    (cache / "tpcds-sf1").mkdir(parents=True)
    assert data.tpcds(1) == cache / "tpcds-sf1"
    assert list((cache / "tpcds-sf1").iterdir()) == []


def test_two_processes_that_generate_at_once_leave_one_whole_suite(cache: Path) -> None:
    first, second = cache / "tpch-sf0.001", cache / "again"
    for folder in (first, second):
        data.generate("tpch", 0.001, folder)
    assert digests(first) == digests(second)
    data.generate("tpch", 0.001, first)
    assert sorted(path.name for path in cache.iterdir()) == ["again", "tpch-sf0.001"]


def test_a_failed_generation_leaves_nothing(cache: Path) -> None:
    with pytest.raises(ModuleNotFoundError, match="tpcx"):
        data.generate("tpcx", 1, cache / "tpcx-sf1")
    assert list(cache.iterdir()) == []
