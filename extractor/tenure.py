"""A job passes from driver to driver. Each has it alone, and starts from what the one before has left.

Whether it may use what was left is decided here, before anything runs: another program, or another Spark or
Python, is a mistake of whoever started it, and an error; changed code beneath the same program only means
that the state is not used. Both are said.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from godwit.extractor.decide import sound
from godwit.extractor.job import JobFolder, JobLease
from godwit.extractor.manifest import Fragment, Manifest
from godwit.extractor.process import say
from godwit.extractor.program import Difference, Program, describe_again, differences
from godwit.extractor.settings import Settings
from godwit.extractor.store import open_store


@dataclass(frozen=True)
class Tenure:
    """One driver's time with the job."""

    job: JobFolder
    lease: JobLease
    left: Manifest | None  # by the driver before
    fragments: tuple[Fragment, ...]  # those that this driver may use

    @property
    def moves(self) -> int:
        return self.left.moves if self.left else 0

    @property
    def sql_conf(self) -> Mapping[str, str]:
        return self.left.sql_conf if self.left else {}

    @property
    def greeting(self) -> str:
        if self.left is None:
            return f"{self.job.name} starts (epoch {self.lease.epoch})"
        size_mb = sum(fragment.bytes for fragment in self.fragments) / 1e6
        count = len(self.fragments)
        return f"resuming {self.job.name} from epoch {self.left.epoch}: {count} fragments, {size_mb:.1f} MB"


def begin(settings: Settings, argv: Sequence[str], code_sha256: str | None) -> Tenure:
    """Takes the job's lock, which ends with this process."""
    job = JobFolder(open_store(settings.store_uri, create=True), settings.job)
    lease = job.acquire()
    left = job.committed()
    lease.prune()
    return Tenure(job, lease, left, usable(left, job.bad(), argv, code_sha256) if left else ())


def usable(
    left: Manifest, bad: frozenset[str], argv: Sequence[str], code_sha256: str | None
) -> tuple[Fragment, ...]:
    changed = check_program(left.program, argv, code_sha256)
    for difference in changed:
        say(f"what is stored cannot be used: {difference.sentence}")
    return () if changed else sound(each for each in left.fragments if each.fingerprint not in bad)


def check_program(stored: Program, argv: Sequence[str], code_sha256: str | None) -> tuple[Difference, ...]:
    """What has changed since; raises if this is not the program at all."""
    found = differences(stored, describe_again(stored, argv, sys.modules, code_sha256, sys.path))
    for difference in found:
        if difference.error is not None:
            raise difference.error(difference.sentence)
    return found
