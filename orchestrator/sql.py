"""`godwit sql`: one SQL text over files, as a job that can be moved like any other."""

import re
import sys
from pathlib import Path
from typing import Any

import click

from godwit.extractor import sqljob
from godwit.extractor.errors import UsageError
from godwit.orchestrator.launch import Launch, become, launch_options

TABLE = re.compile(r"([A-Za-z_]\w*)=(.+)")

TEXT_BYTES = 100_000
"""The text is an argument of the program, and Linux takes 128 kB for one."""


@click.command()
@launch_options
@click.argument("file", metavar="FILE.sql", type=click.Path(allow_dash=True))
@click.option(
    "--table", "tables", multiple=True, metavar="NAME=PATH", help="A table: Parquet, CSV or JSON; repeatable."
)
@click.option("--output", metavar="PATH", help="Write the rows there: .csv, .json, else Parquet.")
def sql(file: str, tables: tuple[str, ...], output: str | None, as_json: bool, **options: Any) -> None:
    """Run one SQL text over files as a job, or resume it if the store holds its state.

    FILE.sql may be - for stdin. Without --output the rows are printed: as a table, or with --json as JSON
    lines.
    """
    # In one word each: a text may begin with a dash.
    words = [f"--sql={read_text(file)}"]
    words += [f"--table={table}" for table in distinct(tables)]
    words += [f"--output={free_output(output)}"] if output else []
    words += ["--json"] if as_json and not output else []
    # -P: the program's own folder is Godwit's, and must not be searched for modules of the same names.
    become(Launch(**options), ["-P", sqljob.__file__, *words], as_json)


def read_text(file: str) -> str:
    try:
        text = standard_input() if file == "-" else Path(file).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"cannot read {file}: {error}", next_step="check the path of the SQL text"
        ) from error
    text = text.strip().removesuffix(";").rstrip()
    if not text:
        raise UsageError(f"{file} holds no SQL", next_step="give a file with one SQL text")
    if "\0" in text:
        raise UsageError(f"{file} holds a zero byte", next_step="give a file with one SQL text")
    if (size := len(text.encode())) > TEXT_BYTES:
        raise UsageError(
            f"the SQL text in {file} has {size:,} bytes, at most {TEXT_BYTES:,} can be passed on",
            next_step="move long lists of values into a table",
        )
    return text


def standard_input() -> str:
    if sys.stdin is None:
        raise OSError("it is closed")
    return sys.stdin.read()


def distinct(tables: tuple[str, ...]) -> list[str]:
    """Each `name=path` with an absolute path: another working folder is no other program."""
    found: dict[str, str] = {}
    seen = set[str]()
    for table in tables:
        match = TABLE.fullmatch(table)
        if match is None:
            raise UsageError(f"--table {table} is not of the form NAME=PATH")
        name, path = match.groups()
        if name.lower() in seen:  # to Spark they are one
            raise UsageError(f"table {name} is given twice", next_step="give each table once")
        seen.add(name.lower())
        local = sqljob.local_path(path)
        if local and not local.exists():
            raise UsageError(f"table {name}: there is no {path}", next_step="check its path")
        found[name] = absolute(path)
    return [f"{name}={path}" for name, path in found.items()]


def free_output(output: str) -> str:
    """What a move interrupted in the middle of its write may be replaced, rows may not."""
    local = sqljob.local_path(output)
    if local and holds_rows(local):
        raise UsageError(f"{output} exists already", next_step="remove it, or choose another --output")
    return absolute(output)


def holds_rows(path: Path) -> bool:
    """Spark writes beneath `_temporary` and moves the files up at the end."""
    if not path.is_dir():
        return path.exists()
    return any(not child.name.startswith(("_temporary", ".")) for child in path.iterdir())


def absolute(path: str) -> str:
    return path if ":/" in path else str(Path(path).absolute())
