"""A program that is wrapped is a changed program: another `__main__`, other pickles, other exit codes.

So nothing is wrapped. A launch is an environment, and then this process *becomes* the program. What can be
known to be wrong is said before that: afterwards stdout, stderr and the exit code are the program's.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn, TypeVar

import click

from godwit.extractor.errors import JobAlive, UsageError
from godwit.extractor.job import JobFolder
from godwit.extractor.store import open_store
from godwit.orchestrator.options import complete_job, json_option, store_option

Command = TypeVar("Command", bound=Callable[..., Any])


@dataclass(frozen=True)
class Launch:
    """How a job is to be started, apart from what it runs."""

    store_uri: str
    job: str
    stop_after_stages: int | None = None
    standby: bool = False
    master: str | None = None
    conf: tuple[str, ...] = ()

    def environment(self, inherited: Mapping[str, str]) -> dict[str, str]:
        """What the user has set wins, but for what the command line says."""
        chosen = {"PYSPARK_PYTHON": sys.executable, "PYTHONHASHSEED": "0", **inherited}
        chosen |= {"GODWIT_JOB": self.job, "GODWIT_STORE": self.store_uri}
        if self.stop_after_stages is not None:
            chosen["GODWIT_STOP_AFTER_STAGES"] = str(self.stop_after_stages)
        if self.standby:
            chosen["GODWIT_STANDBY"] = "1"
        if options := self._submit_options():
            chosen["PYSPARK_SUBMIT_ARGS"] = submit_args(inherited.get("PYSPARK_SUBMIT_ARGS", ""), options)
        return chosen

    def _submit_options(self) -> list[str]:
        master = ["--master", self.master] if self.master else []
        return master + [word for setting in self.conf for word in ("--conf", setting)]


def submit_args(inherited: str, options: Sequence[str]) -> str:
    """Spark lets the later option win, and wants its pseudo program at the end."""
    try:
        words = shlex.split(inherited)
    except ValueError as error:
        raise UsageError(
            f"PYSPARK_SUBMIT_ARGS cannot be read: {error}", next_step="close its quotes"
        ) from error
    before = words[:-1] if words[-1:] == ["pyspark-shell"] else words
    return shlex.join([*before, *options, "pyspark-shell"])


def launch_options(command: Command) -> Command:
    """The options of every command that starts a job."""
    options = (
        store_option,
        click.option(
            "--job", required=True, metavar="NAME", shell_complete=complete_job, help="The job's name."
        ),
        click.option(
            "--stop-after-stages",
            type=click.IntRange(min=1),
            metavar="K",
            help="Move out once K stages of the program have finished.",
        ),
        click.option(
            "--standby",
            is_flag=True,
            help="Start warm, wait until the running job has been moved out, then go on.",
        ),
        click.option("--master", metavar="URL", help="Spark's master, as local[4] or spark://host:7077."),
        click.option(
            "--conf", multiple=True, metavar="K=V", callback=_settings, help="A Spark setting; repeatable."
        ),
        json_option,
    )
    for option in reversed(options):
        command = option(command)
    return command


def become(launch: Launch, words: Sequence[str], as_json: bool) -> NoReturn:
    """This process becomes the program, with the environment that makes it the job's driver."""
    job = admitted(launch)
    begins = beginning(job, launch.standby)
    environment = replace(launch, store_uri=job.store.uri).environment(os.environ)
    if as_json:
        print(json.dumps(begins), file=sys.stderr, flush=True)
        environment["GODWIT_JSON"] = "1"
    try:
        os.execve(sys.executable, [sys.executable, *words], environment)
    except (OSError, ValueError) as error:  # a zero byte is a wrong value
        raise UsageError(f"cannot start {words[0]}: {getattr(error, 'strerror', error)}") from error


def admitted(launch: Launch) -> JobFolder:
    """The job's folder, if nobody else is its driver; a standby waits for just that one."""
    job = JobFolder(open_store(launch.store_uri, create=True), launch.job)
    if job.is_alive() and not launch.standby:
        raise JobAlive(f"job {job.name} is running")
    return job


def beginning(job: JobFolder, standby: bool) -> dict[str, Any]:
    """How the job is about to begin. The driver says it to people itself, once it knows what is usable."""
    manifest = job.committed()
    fragments = manifest.fragments if manifest else ()
    return {
        "job": job.name,
        "begins": "standby" if standby else "resume" if manifest else "start",
        "epoch": manifest.epoch if manifest else None,
        "fragments": len(fragments),
        "bytes": sum(fragment.bytes for fragment in fragments),
    }


def _settings(_ctx: click.Context, _param: click.Parameter, settings: tuple[str, ...]) -> tuple[str, ...]:
    for setting in settings:
        if not setting.partition("=")[0] or "=" not in setting:
            raise click.BadParameter(f"{setting!r} is not of the form K=V")
    return settings
