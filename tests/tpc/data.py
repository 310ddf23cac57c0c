"""TPC-H and TPC-DS as Parquet.

A migrated query is proved on data that everybody knows, without a download: DuckDB's generator extensions
come as Python packages, and what they generate is kept in a cache outside the checkout. A generated suite is
renamed into its place as a whole, so that two processes may generate it at the same time and nobody reads
half of it.

    python -m tests.tpc.data --sf 0.01 [--suite tpch]
"""

import argparse
import os
import shutil
import tempfile
from importlib import resources
from pathlib import Path

import duckdb

GENERATE = {"tpch": "CALL dbgen(sf={sf})", "tpcds": "CALL dsdgen(sf={sf})"}

# Tables of at least this many rows are written as several files, so that their scans have several partitions.
LARGE_TABLE_ROWS = 10_000
LARGE_TABLE_FILES = 4


def tpch(sf: float) -> Path:
    """The folder of TPC-H at this scale factor: one folder of Parquet files per table."""
    return suite("tpch", sf)


def tpcds(sf: float) -> Path:
    """The folder of TPC-DS at this scale factor: one folder of Parquet files per table."""
    return suite("tpcds", sf)


def suite(name: str, sf: float) -> Path:
    folder = cache_folder() / "data" / f"{name}-sf{sf:g}"
    if not folder.exists():
        generate(name, sf, folder)
    return folder


def tables(folder: Path) -> list[Path]:
    """The tables of a generated suite; a folder's name is the table's."""
    return sorted(path for path in folder.iterdir() if path.is_dir())


def cache_folder() -> Path:
    return Path(os.environ.get("GODWIT_CACHE", "~/.cache/godwit")).expanduser()


def generate(name: str, sf: float, folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    half_made = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
    try:
        with connect(name) as connection:
            connection.execute(GENERATE[name].format(sf=sf))
            for (table,) in connection.execute("SELECT table_name FROM duckdb_tables()").fetchall():
                write_table(connection, table, half_made / table)
        half_made.chmod(0o755)
        half_made.rename(folder)
    except OSError:
        # Renaming onto a folder that is there fails: another process was faster, and its data are the same.
        if not folder.exists():
            raise
    finally:
        shutil.rmtree(half_made, ignore_errors=True)


def write_table(connection: duckdb.DuckDBPyConnection, table: str, folder: Path) -> None:
    folder.mkdir()
    (rows,) = connection.execute(f"SELECT count(*) FROM {table}").fetchall()[0]
    files = LARGE_TABLE_FILES if rows >= LARGE_TABLE_ROWS else 1
    for file in range(files):
        first, end = rows * file // files, rows * (file + 1) // files
        selected = f"SELECT * FROM {table} WHERE rowid >= {first} AND rowid < {end} ORDER BY rowid"
        connection.execute(f"COPY ({selected}) TO '{folder}/part-{file}.parquet' (FORMAT parquet)")


def connect(name: str) -> duckdb.DuckDBPyConnection:
    """A DuckDB in memory with the suite's generator, which is loaded from the package's own file."""
    connection = duckdb.connect(config={"autoinstall_known_extensions": "false"})
    version = duckdb.__version__
    with resources.as_file(resources.files(f"duckdb_extension_{name}")) as package:
        connection.execute(f"LOAD '{package}/extensions/v{version}/{name}.duckdb_extension'")
    return connection


def main() -> None:
    parser = argparse.ArgumentParser(description="Generate TPC-H and TPC-DS as Parquet into the cache.")
    parser.add_argument("--sf", type=float, default=0.01, help="scale factor (default 0.01)")
    parser.add_argument("--suite", choices=sorted(GENERATE), help="default: both")
    asked = parser.parse_args()
    for name in [asked.suite] if asked.suite else sorted(GENERATE):
        suite(name, asked.sf)


if __name__ == "__main__":
    main()
