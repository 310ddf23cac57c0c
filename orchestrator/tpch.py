"""A demonstration on made-up data proves little. TPC-H is what the field measures itself by.

Nothing is downloaded: DuckDB's generator makes the tables, once for each scale factor, into a cache.
"""

import os
import shutil
import tempfile
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from godwit.extractor.errors import UsageError

if TYPE_CHECKING:
    import duckdb


def tables(scale_factor: float) -> Path:
    """A folder with a folder of Parquet files for each table."""
    cache = Path(os.environ.get("GODWIT_CACHE", "~/.cache/godwit")).expanduser()
    folder = cache / "demo" / f"tpch-sf{scale_factor:g}"
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        half_made = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
        try:
            generate(scale_factor, half_made)
            half_made.rename(folder)
        finally:
            shutil.rmtree(half_made, ignore_errors=True)
    return folder


def query(number: int) -> str:
    with connect() as connection:
        found = connection.execute("SELECT query FROM tpch_queries() WHERE query_nr = ?", [number]).fetchall()
    return str(found[0][0]).strip().removesuffix(";")


def generate(scale_factor: float, folder: Path) -> None:
    with connect() as connection:
        connection.execute(f"CALL dbgen(sf={scale_factor})")
        for (table,) in connection.execute("SELECT table_name FROM duckdb_tables()").fetchall():
            (folder / table).mkdir()
            connection.execute(f"COPY {table} TO '{folder}/{table}/part-0.parquet' (FORMAT parquet)")


def connect() -> "duckdb.DuckDBPyConnection":
    try:
        import duckdb

        package = resources.files("duckdb_extension_tpch")
    except ModuleNotFoundError as error:
        raise UsageError(
            "the demonstration makes TPC-H tables with DuckDB, which is not installed",
            next_step="pip install duckdb==1.5.5 duckdb-extension-tpch==1.5.5",
        ) from error
    connection = duckdb.connect(config={"autoinstall_known_extensions": "false"})
    extension = f"extensions/v{duckdb.__version__}/tpch.duckdb_extension"
    with resources.as_file(package.joinpath(extension)) as path:
        connection.execute(f"LOAD '{path}'")
    return connection
