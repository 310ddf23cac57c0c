"""A command that fails at night is read by somebody tired, or by a script.

Both get what they need from one place: people one line that says what is wrong and what to do next, scripts
an exit code for each kind of trouble, and the same as JSON if they asked for it.
"""

import json
import sys
from collections.abc import Sequence
from typing import NoReturn

import click

from godwit.extractor.errors import GodwitError, UsageError, failure
from godwit.extractor.process import one_line
from godwit.orchestrator.completion import completion
from godwit.orchestrator.demo import demo
from godwit.orchestrator.drop import drop
from godwit.orchestrator.explain import explain
from godwit.orchestrator.jobs import jobs
from godwit.orchestrator.migrate import migrate
from godwit.orchestrator.run import run
from godwit.orchestrator.sql import sql

INTERRUPTED = 130
"""What shells give to a command that was ended by Ctrl-C."""


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="godwit", message="%(prog)s %(version)s")
def godwit() -> None:
    """Moves running Spark queries between processes without losing finished work."""


for command in (run, sql, migrate, jobs, explain, drop, demo, completion):
    godwit.add_command(command)


def main(argv: Sequence[str] | None = None) -> NoReturn:
    words = sys.argv[1:] if argv is None else argv
    spoken = {"as_json": False}
    try:
        code = godwit.main(words, prog_name="godwit", standalone_mode=False, obj=spoken)
    except click.Abort:
        code = INTERRUPTED
    except click.UsageError as error:
        # Not understood, so nobody has read the options yet.
        code = tell(usage_error(error), as_json="--json" in words)
    except GodwitError as error:
        code = tell(error, **spoken)
    sys.exit(code)


def usage_error(error: click.UsageError) -> UsageError:
    command = error.ctx.command_path if error.ctx else "godwit"
    if isinstance(error, click.exceptions.NoArgsIsHelpError):  # its message is the whole help
        return UsageError("a command is missing", next_step=f"see `{command} --help`")
    return UsageError(error.format_message().rstrip("."), next_step=f"see `{command} --help`")


def tell(error: GodwitError, as_json: bool) -> int:
    """On stderr in either form: stdout belongs to what a command puts out."""
    line = json.dumps(failure(error)) if as_json else f"godwit: {one_line(error)}"
    print(line, file=sys.stderr)
    return error.exit_code
