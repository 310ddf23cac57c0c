"""A program may stop its SparkContext and make another one, in the same JVM."""

import gc
import time
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from tests.spark.pair import Capture, Driver, Running, driver, write


def asked(here: Driver, table: str) -> DataFrame:
    """Three shuffles, one after the other."""
    keys = here.spark.read.parquet(table).groupBy("k").agg(sf.sum("v").alias("s"))
    return keys.groupBy("s").count().groupBy("count").agg(sf.sum("s").alias("t"))


def use_what_is_stored(capture: Capture, table: str) -> None:
    with driver() as here:
        here.load(capture)
        Running(asked(here, table).collect).rows()
        assert here.report().used


def test_what_the_one_has_read_from_the_store_takes_nothing_from_the_next(tmp_path: Path) -> None:
    """Spark counts shuffles from zero in each context, and frees them when nobody refers to them any more."""
    table = write(tmp_path / "table", k=[n % 50 for n in range(1000)], v=range(1000))
    with driver() as here:
        capture = here.moved(asked(here, table), tmp_path / "blocks", stages=1)
    use_what_is_stored(capture, table)
    with driver() as here:
        here.stop_after(1)
        query = Running(lambda: asked(here, table).collect())
        assert here.parked(query)
        for _ in range(5):
            gc.collect()
            here.spark._jvm.System.gc()
            time.sleep(0.2)
        here.jvm.open_gate()
        assert sorted(query.rows()) == sorted(capture.rows)
