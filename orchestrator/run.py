"""`godwit run`: the same command starts a job and, on another machine, goes on with it."""

from pathlib import Path
from typing import Any

import click

from godwit.extractor.errors import UsageError
from godwit.orchestrator.launch import Launch, become, launch_options


@click.command(context_settings={"allow_interspersed_args": False})
@launch_options
@click.argument("program", metavar="PROGRAM.py", type=click.Path())
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def run(program: str, args: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Start a PySpark program as a job, or resume it if the store holds its state.

    The exit code is the program's own, or 75 when the job was moved out: then the same command, anywhere,
    goes on with it. With --json one object on stderr says how it begins: job, begins (start, resume,
    standby), epoch, fragments, bytes.
    """
    if not Path(program).is_file():
        raise UsageError(f"there is no program {program}", next_step="check its path")
    become(Launch(**options), [program, *args], as_json)
