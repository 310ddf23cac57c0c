"""A job outlives its drivers: one is stopped, another goes on, a third may be started by mistake meanwhile.

Its folder in the store says at any moment which of these is true, without anybody having to be asked:

    lock       held by the live driver's process, and by nothing else once that is gone
    epoch      how many drivers there have been; the number of the latest
    running    who the latest driver is and how to talk to it; secret, for it holds the token
    manifest   the committed state; its presence is the commit
    journal/   what of the program has been done, by whichever driver; in batches, each written once
    ended      the program came to its own end: nothing is left to resume
    bad/       fragments that proved corrupt when they were read
    blocks/    what executors wrote, a folder per attempt; only those that the manifest names mean anything

Anyone may look (`JobFolder`); only who holds the lock may change anything (`JobLease`). A standby rehearses
in a folder of its own under `blocks`, which means nothing either.
"""

import json
import re
import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from godwit.extractor.errors import (
    GodwitError,
    JobAlive,
    ManifestCorrupt,
    MoveFailed,
    StoreUnreadable,
    UnknownJob,
    UsageError,
)
from godwit.extractor.manifest import FINGERPRINT, Manifest, decode, encode
from godwit.extractor.program import Program
from godwit.extractor.store import Lock, Store
from godwit.planrewrite.records import from_plain, to_plain

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")

Record = TypeVar("Record")

_DROP = "give the job up with `godwit drop`, then run it again from its start"


class JobState(StrEnum):
    RUNNING = "running"  # a driver is alive
    MOVED_OUT = "moved-out"  # no driver, but committed state: the next run resumes
    ENDED = "ended"  # the program came to its own end
    DEAD = "dead"  # no driver, no state: the next run starts afresh


@dataclass(frozen=True)
class Running:
    """The live driver of a job, or its last one."""

    epoch: int
    pid: int
    host: str
    endpoint: str  # of the control endpoint, "http://host:port"
    token: str
    started_at: float  # seconds since 1970
    program: Program
    spark_conf: Mapping[str, str]  # what a standby takes over to be shaped alike


@dataclass(frozen=True)
class Ended:
    epoch: int
    ended_at: float  # seconds since 1970
    moves: int


@dataclass(frozen=True)
class JobView:
    """A job at a glance."""

    name: str
    state: JobState
    epoch: int  # of the latest driver
    running: Running | None
    manifest: Manifest | None
    ended: Ended | None
    problem: str | None  # what could not be read of it

    @property
    def moves(self) -> int:
        return max((record.moves for record in (self.manifest, self.ended) if record), default=0)


class JobFolder:
    """One job in a store, for anyone to look at."""

    def __init__(self, store: Store, name: str) -> None:
        if not NAME.fullmatch(name):
            raise UsageError(
                f"{name!r} cannot be a job's name",
                next_step="take up to 63 letters, digits, dots, dashes, underscores; a letter or digit first",
            )
        self.store = store
        self.name = name

    def key(self, item: str) -> str:
        return f"jobs/{self.name}/{item}"

    def bulk_uri(self, folder: str) -> str:
        """The address, for Hadoop, of a folder of this job such as a fragment's."""
        return self.store.bulk_uri(self.key(folder))

    def is_alive(self) -> bool:
        return self.store.is_locked(self.key("lock"))

    def running(self) -> Running | None:
        return self._record("running", Running)

    def ended(self) -> Ended | None:
        return self._record("ended", Ended)

    def committed(self) -> Manifest | None:
        """The state that the next driver resumes from."""
        data = self.store.get(self.key("manifest"))
        # A driver that was killed while it tidied up after its program's end leaves both.
        if data is None or self.store.exists(self.key("ended")):
            return None
        manifest = decode(data)
        if manifest.job != self.name:
            raise ManifestCorrupt(f"the manifest of {self.name} is the one of {manifest.job}")
        return manifest

    def bad(self) -> frozenset[str]:
        """The fingerprints of fragments that are not to be trusted."""
        return frozenset(self.store.list(self.key("bad")))

    def view(self) -> JobView:
        problems: list[str] = []

        def readable(read: Callable[[], Record | None]) -> Record | None:
            try:
                return read()
            except (ManifestCorrupt, StoreUnreadable) as error:
                problems.append(str(error))
                return None

        alive = self.is_alive()  # first: a driver that is gone by then has done all it will do
        epoch = readable(self.latest_epoch) or 0
        running, manifest, ended = readable(self.running), readable(self.committed), readable(self.ended)
        if running is not None and alive and running.epoch != epoch:
            running = None  # the one before: the live driver has not said yet who it is
        state = JobState.RUNNING if alive else self._state(manifest, ended)
        return JobView(self.name, state, epoch, running, manifest, ended, "; ".join(problems) or None)

    def acquire(self) -> "JobLease":
        """Become the job's driver."""
        lock = self._lock()
        try:
            epoch = self.latest_epoch() + 1
            self.store.put(self.key("epoch"), str(epoch).encode())
            if self.store.exists(self.key("ended")):
                self._forget()
        except BaseException:
            lock.release()
            raise
        return JobLease(self, epoch, lock)

    def drop(self) -> None:
        """Remove the job and all its state."""
        lock = self._lock()
        try:
            # The journal first: if this is broken off, no driver may answer from it for a job that has lost
            # its epoch and its end. The lock last: until then nobody starts the job in a folder that is
            # being removed.
            self.store.delete(self.key("journal"))
            for item in self.store.list(f"jobs/{self.name}"):
                if item != "lock":
                    self.store.delete(self.key(item))
            self.store.delete(self.key("lock"))
        finally:
            lock.release()

    def latest_epoch(self) -> int:
        text = self.store.get(self.key("epoch")) or b"0"
        if not text.isdigit():
            raise StoreUnreadable(f"the epoch of job {self.name} is not a number", next_step=_DROP)
        return int(text)

    def _state(self, manifest: Manifest | None, ended: Ended | None) -> JobState:
        if ended is not None:
            return JobState.ENDED
        return JobState.MOVED_OUT if manifest is not None else JobState.DEAD

    def _lock(self) -> Lock:
        lock = self.store.lock(self.key("lock"))
        if lock is None:
            running = self.view().running
            where = f" on {running.host} (process {running.pid})" if running else ""
            raise JobAlive(f"job {self.name} is running{where}")
        return lock

    def _forget(self) -> None:
        """Remove what an ended program left; the record of its end last, so that this is taken up again."""
        for item in ("manifest", "journal", "blocks", "bad", "ended"):
            self.store.delete(self.key(item))

    def _record(self, item: str, record: type[Record]) -> Record | None:
        data = self.store.get(self.key(item))
        if data is None:
            return None
        try:
            return from_plain(record, json.loads(data), item)
        except ValueError as error:
            raise StoreUnreadable(f"job {self.name} has a broken record: {error}", next_step=_DROP) from error


class JobLease:
    """The right to change a job, held by its one live driver until it lets go or its process ends."""

    def __init__(self, job: JobFolder, epoch: int, lock: Lock) -> None:
        self.job = job
        self.epoch = epoch
        self._lock = lock

    def announce(self, running: Running) -> None:
        """Say who the driver is, so that others can talk to it."""
        self.job.store.put(self.job.key("running"), _json(running), private=True)

    def check_ours(self) -> None:
        """The lock should make it impossible that the job is not; a network file system may lose locks."""
        if (latest := self.job.latest_epoch()) != self.epoch:
            raise MoveFailed(
                f"driver {latest} of job {self.job.name} has taken over from driver {self.epoch}"
            )

    def new_blocks(self) -> str:
        """A folder that no attempt has used before, for bulk data; relative to the job's folder."""
        return f"blocks/{self.epoch}-{secrets.token_hex(4)}"

    def commit(self, manifest: Manifest) -> None:
        """From here on the next driver resumes from this manifest. Everything that it names is already
        there.
        """
        if (manifest.job, manifest.epoch) != (self.job.name, self.epoch):
            raise ValueError(f"a manifest of {manifest.job}, epoch {manifest.epoch}, is not this driver's")
        self.check_ours()
        self.job.store.put(self.job.key("manifest"), encode(manifest))
        # Marks of the manifest before say nothing about these fragments; left there, they only cost time.
        with suppress(GodwitError):
            self.job.store.delete(self.job.key("bad"))

    def mark_bad(self, fingerprint: str, reason: str) -> None:
        """No later driver is to use this fragment of the committed manifest."""
        if not FINGERPRINT.fullmatch(fingerprint):
            raise ValueError(f"not a fingerprint: {fingerprint!r}")
        self.check_ours()
        self.job.store.create(self.job.key(f"bad/{fingerprint}"), reason.encode())

    def prune(self) -> list[str]:
        """Remove the block folders that the committed manifest does not name: leftovers of moves that failed.

        Not while one is being written, and not while an earlier manifest's blocks are still read.
        """
        self.check_ours()
        manifest = self.job.committed()
        named = {fragment.folder.split("/")[1] for fragment in manifest.fragments} if manifest else set()
        leftovers = [name for name in self.job.store.list(self.job.key("blocks")) if name not in named]
        for name in leftovers:
            self.job.store.delete(self.job.key(f"blocks/{name}"))
        return leftovers

    def end(self, *, ended_at: float, moves: int) -> None:
        """The program came to its own end: there is nothing to resume any more."""
        self.check_ours()
        self.job.store.put(self.job.key("ended"), _json(Ended(self.epoch, ended_at, moves)))
        for item in ("manifest", "journal", "blocks", "bad"):
            self.job.store.delete(self.job.key(item))

    def release(self) -> None:
        self._lock.release()


def job_names(store: Store) -> list[str]:
    def is_job(name: str) -> bool:  # and not what somebody else has put there
        return any(store.exists(f"jobs/{name}/{item}") for item in ("lock", "epoch"))

    return [name for name in store.list("jobs") if NAME.fullmatch(name) and is_job(name)]


def list_jobs(store: Store) -> list[JobView]:
    return [JobFolder(store, name).view() for name in job_names(store)]


def existing_job(store: Store, name: str) -> JobFolder:
    """The job of this name; UnknownJob if the store has none."""
    job = JobFolder(store, name)
    if name not in job_names(store):
        raise UnknownJob(f"there is no job {name} in {store.uri}")
    return job


def _json(record: Running | Ended) -> bytes:
    return json.dumps(to_plain(record), indent=1).encode()
