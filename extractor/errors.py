"""Errors meet people in the middle of the night: one line, what to do next, and an exit code for scripts.

    GodwitError
    ├── UsageError          64  the request makes no sense
    ├── ManifestCorrupt     65  the job's committed state cannot be trusted
    ├── JournalCorrupt      65  the record of what the program has done cannot be trusted (`journal`)
    ├── UnknownJob          66  the store has no such job
    ├── StoreUnreadable     67  the store cannot be reached, read or written
    │   ├── ForeignStore    67  there is something, but no store of this format
    │   └── StoreUnsure     67  the store failed in mid-write: it may have been written, or not
    ├── OtherProgram        68  another program or other arguments than made the state
    ├── OtherVersion        69  another Spark or Python than made the state
    ├── JobAlive            70  a driver of this job is running
    ├── MoveRefused         71  this program may not be moved now; it goes on
    │   ├── MoveUnderWay    71  another move has begun (`control`)
    │   └── NotNow          71  what is in the way will pass (`agent`)
    ├── MoveFailed          72  the move was tried and undone; the program goes on
    │   └── StoreFull       72  the store has no space left
    ├── DriverUnreachable   72  nobody answers at the driver's endpoint (`control`)
    ├── JvmGone             72  the driver has lost its JVM (`facade`)
    ├── DeadlinePassed      73  there is no time left to move in
    └── PoolFailed           1  a process of the demo has failed (`orchestrator.pools`)

0 and the program's own codes stay the program's; 75 is no error: the job was moved out.
"""

from typing import ClassVar

MOVED_OUT = 75
"""The exit code of a driver whose job was moved out: EX_TEMPFAIL, "try again", which is what to do."""


class GodwitError(Exception):
    """An error that people see; `str()` is one line, `next_step` another."""

    exit_code: ClassVar[int]
    next_step: str

    def __init__(self, message: str, *, next_step: str | None = None) -> None:
        super().__init__(message)
        if next_step is not None:
            self.next_step = next_step


def failure(error: GodwitError) -> dict[str, str | int]:
    """For machines."""
    return {"error": str(error), "next_step": error.next_step, "exit_code": error.exit_code}


class UsageError(GodwitError):
    exit_code = 64
    next_step = "see `godwit --help`"


class ManifestCorrupt(GodwitError):  # noqa: N818 - here and below: named for what happened
    exit_code = 65
    next_step = "give the state up with `godwit drop`, then run the job again from its start"


class UnknownJob(GodwitError):  # noqa: N818
    exit_code = 66
    next_step = "see `godwit jobs` for the jobs of this store"


class StoreUnreadable(GodwitError):  # noqa: N818
    exit_code = 67
    next_step = "check the address of the store, that it is mounted, and its permissions"


class ForeignStore(StoreUnreadable):
    next_step = "give an empty folder, one that does not exist yet, or a store that godwit made"


class StoreUnsure(StoreUnreadable):
    """Only looking tells."""


class OtherProgram(GodwitError):  # noqa: N818
    exit_code = 68
    next_step = "run what made the state, or give the state up with `godwit drop`"


class OtherVersion(GodwitError):  # noqa: N818
    exit_code = 69
    next_step = "use the versions that made the state, or give the state up with `godwit drop`"


class JobAlive(GodwitError):  # noqa: N818
    exit_code = 70
    next_step = "wait for it, move it out with `godwit migrate`, or choose another job name"


class MoveRefused(GodwitError):  # noqa: N818
    exit_code = 71
    next_step = "let the program end"


class MoveFailed(GodwitError):  # noqa: N818
    exit_code = 72
    next_step = "mend the cause and move again; the job goes on meanwhile"


class StoreFull(MoveFailed):
    next_step = "make space in the store, or drop jobs with `godwit drop`, and try again"


class DeadlinePassed(GodwitError):  # noqa: N818
    exit_code = 73
    next_step = "give a deadline in the future"
