"""The same word on the command line must mean the same in every command.

Here are the options and arguments that several commands share, how durations are read, and how the shell
completes the name of a job.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from godwit.extractor.errors import GodwitError
from godwit.extractor.job import job_names
from godwit.extractor.store import open_store

Command = TypeVar("Command", bound=Callable[..., Any])

SECONDS_PER_UNIT = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
LONGEST_SECONDS = 366 * 86_400
DURATION = re.compile(r"(-?\d+(?:\.\d+)?)(ms|s|m|h)?")


def duration(_ctx: click.Context, _param: click.Parameter, text: str) -> float:
    """`500ms`, `30s`, `2m`, `1h` as seconds; a bare number is seconds already."""
    match = DURATION.fullmatch(text)
    if match is None:
        raise click.BadParameter(f"{text!r} is not a duration; write 500ms, 30s or 2m")
    seconds = float(match[1]) * SECONDS_PER_UNIT[match[2] or "s"]
    if seconds > LONGEST_SECONDS:
        raise click.BadParameter(f"{text!r} is longer than a year")
    return seconds


def complete_job(ctx: click.Context, _param: click.Parameter, typed: str) -> list[CompletionItem]:
    uri = ctx.params.get("store_uri")
    try:
        names = job_names(open_store(uri, create=False)) if uri else []
    except GodwitError:
        # Completion happens while somebody types: a store that is not there completes nothing, and the
        # command itself will say so.
        return []
    return [CompletionItem(name) for name in names if name.startswith(typed)]


def store_option(command: Command) -> Command:
    return click.option(
        "--store",
        "store_uri",
        envvar="GODWIT_STORE",
        required=True,
        metavar="URI",
        help="Where jobs keep their state: file:///folder or a path. [env: GODWIT_STORE]",
    )(command)


def json_option(command: Command) -> Command:
    return click.option(
        "--json",
        "as_json",
        is_flag=True,
        callback=_remember_json,
        help="Machine-readable output, errors too.",
    )(command)


def job_argument(command: Command) -> Command:
    return click.argument("job", metavar="NAME", shell_complete=complete_job)(command)


def print_json(value: object) -> None:
    """One value, one line, at once: progress is read while it happens."""
    print(json.dumps(value), flush=True)


def _remember_json(ctx: click.Context, _param: click.Parameter, value: bool) -> bool:
    if value:
        ctx.obj["as_json"] = True
    return value
