"""Small tables with everything in them that has ever made two plans differ.

Nulls in keys, a hot key, a folder per partition value, nested and binary columns, decimals, floats whose sums
are exact in any order (they are multiples of 1/4). No generator of random numbers: the same rows every time.
"""

from pathlib import Path

import duckdb
from pyspark.sql import SparkSession

FACT_ROWS = 20_000
FACT_FILES = 4

FACTS = """
SELECT
    i AS id,
    CASE WHEN i % 17 <> 0 THEN CAST(i * 7919 % 211 AS INTEGER) END AS k,
    CASE WHEN i % 5 <> 0 THEN CAST(0 AS BIGINT) ELSE i % 97 END AS hot,
    CAST(i % 23 AS INTEGER) AS grp,
    CASE WHEN i % 13 <> 0 THEN 'name-' || (i * 31 % 57) END AS name,
    CAST((i * 37 % 100003) * 0.25 AS DECIMAL(12, 2)) AS quarter,
    CAST((i * 7907 % 1000003) / 100.0 AS DECIMAL(12, 2)) AS amount,
    CAST((i * 271 % 4001) / 4.0 AS DOUBLE) AS price,
    DATE '2024-01-01' + CAST(i * 3 % 366 AS INTEGER) AS day,
    TIMESTAMP '2024-03-30 22:00:00' + INTERVAL (i * 97 % 86400) SECOND AS at,
    [i % 5, NULL, i % 3] AS numbers,
    {'city': 'c' || (i % 11), 'geo': {'lat': CAST(i % 9 AS INTEGER), 'lon': NULL}} AS place,
    encode('raw' || (i % 29)) AS raw
FROM range({first}, {end}) AS r(i)
"""

DIMS = """
SELECT
    CASE WHEN i < 200 THEN CAST(i AS INTEGER) END AS k,
    CAST(i AS BIGINT) AS long_k,
    CAST(i % 23 AS INTEGER) AS grp,
    'name-' || (i % 57) AS name,
    'label-' || (i % 19) AS label,
    CAST(i * 1.25 AS DECIMAL(10, 3)) AS weight
FROM range(203) AS r(i)
"""

BANDS = "SELECT CAST(i AS INTEGER) AS band, i * 250.0 AS low, (i + 1) * 250.0 AS high FROM range(5) AS r(i)"

BY_MONTH = """
SELECT i AS id, CAST(i * 7 % 50 AS INTEGER) AS k, CAST(i % 12 AS INTEGER) AS month
FROM range(6000) AS r(i)
"""

JSONS = """
SELECT i AS id, CAST(i % 23 AS INTEGER) AS grp,
    '{"a": ' || (i % 7) || ', "b": {"c": "x' || (i % 5) || '"}, "d": [1, ' || i || ']}' AS json
FROM range(3000) AS r(i)
"""

TABLES = ("facts", "dims", "bands", "by_month", "jsons")


def write_tables(folder: Path) -> None:
    """Writes the tables as Parquet into an empty folder, the same files' content every time."""
    with duckdb.connect() as connection:
        (folder / "facts").mkdir(parents=True)
        for file in range(FACT_FILES):
            first, end = FACT_ROWS * file // FACT_FILES, FACT_ROWS * (file + 1) // FACT_FILES
            rows = FACTS.replace("{first}", str(first)).replace("{end}", str(end))
            connection.execute(f"COPY ({rows}) TO '{folder}/facts/part-{file}.parquet'")
        for name, rows in (("dims", DIMS), ("bands", BANDS), ("jsons", JSONS)):
            (folder / name).mkdir()
            connection.execute(f"COPY ({rows}) TO '{folder}/{name}/part-0.parquet'")
        connection.execute(f"COPY ({BY_MONTH}) TO '{folder}/by_month' (FORMAT parquet, PARTITION_BY (month))")


def open_tables(spark: SparkSession, folder: Path) -> None:
    for name in TABLES:
        spark.read.parquet(str(folder / name)).createOrReplaceTempView(name)
