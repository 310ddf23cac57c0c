"""A write that is done twice is worse than one that is lost: whatever may have begun one is not moved."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from godwit.extractor import decide
from tests.spark.pair import Driver, Running, driver, holder, wait_until


@pytest.fixture(scope="module")
def source() -> Iterator[Driver]:
    with driver(cores=2) as made:
        yield made


def writing(frame: DataFrame, form: str, folder: Path) -> Running:
    def write() -> list[Any]:
        frame.write.format(form).mode("append").save(str(folder))
        return []

    return Running(write)


@pytest.mark.parametrize("form", ["parquet", "noop"])
def test_a_write_in_its_last_stage_is_seen_as_writing(source: Driver, tmp_path: Path, form: str) -> None:
    """Spark has two ways to write, and in the plan of the second the adaptive part is not at the root."""
    sums = source.spark.range(1000).groupBy((sf.col("id") % 10).alias("k")).count()
    held = sums.withColumn("k", sf.udf(holder(tmp_path), "long")("k"))
    query = writing(held, form, tmp_path / "out")
    try:
        wait_until((tmp_path / "held").exists)
        source.jvm.close_gate()
        (seen,) = source.graph().queries
        assert (seen.write, seen.result_running) == (True, True)
    finally:
        (tmp_path / "go").touch()
        source.jvm.open_gate()
    query.rows()
    assert source.graph().side_effects[-1].startswith(f"execution {seen.execution}: ")


@pytest.mark.parametrize("form", ["parquet", "noop"])
def test_a_write_that_waits_for_its_stages_is_not_one_yet(source: Driver, tmp_path: Path, form: str) -> None:
    numbers = source.spark.range(0, 1000, 1, 2).select(sf.udf(holder(tmp_path), "long")("id").alias("id"))
    sums = numbers.groupBy((sf.col("id") % 10).alias("k")).count()
    query = writing(sums, form, tmp_path / "out")
    try:
        wait_until((tmp_path / "held").exists)
        source.jvm.close_gate()
        (seen,) = source.graph().queries
        assert (seen.write, seen.result_running) == (True, False)
        assert decide.last_refusal(source.graph()) is None
        (tmp_path / "go").touch()
        wait_until(lambda: source.graph().queries[0].parked)
        assert decide.last_refusal(source.graph()) is None
        assert not list((tmp_path / "out").glob("*.parquet"))
    finally:
        (tmp_path / "go").touch()
        source.jvm.open_gate()
    query.rows()
