"""A program is run again from its first line, and what it has done to the world must not be done twice.

The journal says what has been done: each driver writes a record for each phase of each action of the
program, and the next one looks at an action's place before it runs it. Records are written in batches, each
an object of its own that is never changed, named by the driver's epoch and a number that counts up from 1:

    journal/000003-000001   b"GODWITJ1\\n"  32 bytes of SHA-256 over the rest  msgpack of `_Batch`

A batch that does not decode into exactly this, or that is missing between others, is JournalCorrupt: a
program that cannot know what it has done must not go on.
"""

import hashlib
import re
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby
from typing import Any

import msgpack

from godwit.extractor.errors import GodwitError, ManifestCorrupt, MoveFailed
from godwit.extractor.job import JobFolder, JobLease
from godwit.planrewrite.records import RecordError, from_plain, to_plain

MAGIC = b"GODWITJ1\n"
FORMAT = 1
HEADER_BYTES = len(MAGIC) + hashlib.sha256().digest_size

FOLDER = "journal"
NAME = re.compile(r"([0-9]{6,})-([0-9]{6,})")
DIGEST = re.compile(r"[0-9a-f]+")
UNICODE_ERRORS = "surrogatepass"  # a path of the program need not be a proper text


class JournalCorrupt(GodwitError):  # noqa: N818 - named for what happened
    exit_code = 65
    next_step = ManifestCorrupt.next_step


class Phase(StrEnum):
    BEGUN = "begun"  # it may have had its effect, or a part of it
    DONE = "done"
    FAILED = "failed"  # it surely had no effect: the next driver runs it


@dataclass(frozen=True)
class Place:
    """Which action of the program, in words that hold for every driver."""

    thread: str  # as `threads.Names` calls it
    number: int  # among the actions of that thread


@dataclass(frozen=True)
class Record:
    """One phase of one action."""

    place: Place
    call: str  # "DataFrameWriter.save"
    digest: str  # of the call, its arguments, and what they stand for; hex
    shown: str  # the call, for people
    writes: bool
    targets: tuple[str, ...]  # what it writes to
    phase: Phase
    answer: bytes | None  # packed by `values`
    why_no_answer: str | None
    epoch: int  # of the driver that did it
    at: float  # seconds since 1970


@dataclass(frozen=True)
class Forgotten:
    """The program went another way from this place on: what had been recorded of the rest of the thread is
    void.
    """

    thread: str
    number: int
    epoch: int  # of the driver that went that way


Entry = Record | Forgotten


@dataclass(frozen=True)
class _Entry:
    """Either of both, as it is stored."""

    record: Record | None = None
    forgotten: Forgotten | None = None


@dataclass(frozen=True)
class _Batch:
    records: tuple[_Entry, ...]


# Writing


class Writer:
    """Adds to the journal what the live driver does. A driver has one, for all of its threads."""

    def __init__(self, lease: JobLease) -> None:
        self._lease = lease
        self._adding = threading.Lock()
        self._buffer: list[Entry] = []
        self._flushing = threading.Lock()
        self._batches = 0  # written, by this driver
        self._tried: _Tried | None = None

    def add(self, entry: Entry) -> None:
        """It becomes durable with the next flush."""
        if found := _problem(entry, self._lease.epoch):
            raise ValueError(f"not to be recorded by driver {self._lease.epoch}: {found}")
        with self._adding:
            self._buffer.append(entry)

    def add_durably(self, entry: Entry) -> None:
        self.add(entry)
        self.flush()

    def flush(self) -> None:
        """When this returns, whatever was added before it was called is durable. When it raises, the next
        flush writes it.
        """
        with self._flushing:
            if self._tried is not None:
                self._write(self._tried, is_new=False)
            with self._adding:
                entries = tuple(self._buffer)
            if entries:
                self._tried = _Tried(len(entries), encode(entries))
                self._write(self._tried, is_new=True)

    def _write(self, tried: "_Tried", *, is_new: bool) -> None:
        self._lease.check_ours()
        job = self._lease.job
        key = job.key(f"{FOLDER}/{_name(self._lease.epoch, self._batches + 1)}")
        if not is_new and job.store.get(key) == tried.data:
            # It has been written, but a store that failed in the middle may still forget that.
            job.store.put(key, tried.data)
        elif not job.store.create(key, tried.data):
            epoch = self._lease.epoch
            raise MoveFailed(f"another driver of job {job.name} has taken over from driver {epoch}")
        with self._adding:
            del self._buffer[: tried.entries]
        self._batches += 1
        self._tried = None


@dataclass(frozen=True)
class _Tried:
    """A batch that was handed to the store. Until the store has it for good no other may take its name: it
    could still appear there.
    """

    entries: int  # how many, from the head of the buffer
    data: bytes


# Reading


@dataclass(frozen=True)
class Past:
    """What the drivers before have left: of each place the latest that is known."""

    records: Mapping[Place, Record]

    @property
    def is_empty(self) -> bool:
        return not self.records

    def at(self, place: Place) -> Record | None:
        return self.records.get(place)

    def writes_from(self, passed: Mapping[str, int]) -> list[Record]:
        """The writes, begun or done, that the program has not come to yet, the oldest first; `passed` has the
        number of each thread's next action.
        """
        ahead = (
            record
            for place, record in self.records.items()
            if record.writes
            and record.phase is not Phase.FAILED
            and place.number >= passed.get(place.thread, 0)
        )
        return sorted(ahead, key=lambda record: record.at)


def load(job: JobFolder) -> Past:
    # A driver that was killed while it tidied up after its program's end leaves both.
    if job.store.exists(job.key("ended")):
        return Past({})
    records: dict[Place, Record] = {}
    for epoch, number in _in_order(job.store.list(job.key(FOLDER))):
        name = _name(epoch, number)
        data = job.store.get(job.key(f"{FOLDER}/{name}"))
        if data is None:
            raise JournalCorrupt(f"batch {name} of the journal has gone")
        for entry in decode(data, name, epoch):
            _take(records, entry)
    return Past(records)


def _take(records: dict[Place, Record], entry: Entry) -> None:
    if isinstance(entry, Record):
        records.pop(entry.place, None)  # so that the latest stands last
        records[entry.place] = entry
    else:
        for place in [each for each in records if _is_void(each, entry)]:
            del records[place]


def _is_void(place: Place, forgotten: Forgotten) -> bool:
    return place.thread == forgotten.thread and place.number >= forgotten.number


# Batches


def encode(entries: Iterable[Entry]) -> bytes:
    batch = _Batch(tuple(map(_stored, entries)))
    plain = {"format": FORMAT, **to_plain(batch)}
    body: bytes = msgpack.packb(plain, unicode_errors=UNICODE_ERRORS)
    return MAGIC + hashlib.sha256(body).digest() + body


def decode(data: bytes, name: str, epoch: int) -> list[Entry]:
    where = f"batch {name} of the journal"
    plain = _unpacked(_verified(data, where), where)
    written_as = plain.pop("format", None)
    if written_as != FORMAT:
        raise JournalCorrupt(f"{where} has format {written_as!r}, this godwit reads format {FORMAT}")
    try:
        batch = from_plain(_Batch, plain, where)
    except RecordError as error:
        raise JournalCorrupt(str(error)) from error
    if not batch.records:
        raise JournalCorrupt(f"{where} is empty")
    return [_checked(entry, epoch, where) for entry in batch.records]


def _stored(entry: Entry) -> _Entry:
    return _Entry(record=entry) if isinstance(entry, Record) else _Entry(forgotten=entry)


def _verified(data: bytes, where: str) -> bytes:
    if not data.startswith(MAGIC):
        raise JournalCorrupt(f"{where} does not begin like one")
    if len(data) <= HEADER_BYTES:
        raise JournalCorrupt(f"{where} is cut off after {len(data)} bytes")
    body = data[HEADER_BYTES:]
    if hashlib.sha256(body).digest() != data[len(MAGIC) : HEADER_BYTES]:
        raise JournalCorrupt(f"the checksum of {where} is wrong: it is cut off or was changed")
    return body


def _unpacked(body: bytes, where: str) -> dict[str, Any]:
    try:
        plain = msgpack.unpackb(body, unicode_errors=UNICODE_ERRORS)
    except (ValueError, msgpack.UnpackException) as error:
        raise JournalCorrupt(f"{where} is not msgpack: {error}") from error
    if not isinstance(plain, dict):
        raise JournalCorrupt(f"{where} is not a map")
    return plain


def _checked(stored: _Entry, epoch: int, where: str) -> Entry:
    either: tuple[Entry | None, ...] = (stored.record, stored.forgotten)
    found = [each for each in either if each is not None]
    if len(found) != 1:
        raise JournalCorrupt(f"{where} has an entry that is neither a record nor something forgotten")
    if problem := _problem(found[0], epoch):
        raise JournalCorrupt(f"{where} cannot be: {problem}")
    return found[0]


def _problem(entry: Entry, epoch: int) -> str | None:
    """What no entry of this epoch's driver can be."""
    number = entry.place.number if isinstance(entry, Record) else entry.number
    if entry.epoch != epoch:
        return f"an entry is of driver {entry.epoch}"
    if number < 0:
        return f"the number of an action is {number}"
    if isinstance(entry, Forgotten):
        return None
    if not DIGEST.fullmatch(entry.digest):
        return f"the digest of an action is {entry.digest!r}"
    if entry.answer is not None and entry.phase is not Phase.DONE:
        return f"an action has an answer that is {entry.phase}"
    if entry.answer is not None and entry.why_no_answer is not None:
        return "an action has an answer, and a reason why it has none"
    return None


def _name(epoch: int, number: int) -> str:
    return f"{epoch:06d}-{number:06d}"


def _in_order(names: Sequence[str]) -> list[tuple[int, int]]:
    """Epochs and numbers of the batches with these names; none may be missing between others."""
    batches = sorted(_numbers(name) for name in names)
    for epoch, group in groupby(batches, key=lambda batch: batch[0]):
        for expected, (_, number) in enumerate(group, start=1):
            if number != expected:
                raise JournalCorrupt(f"batch {_name(epoch, expected)} of the journal is missing")
    return batches


def _numbers(name: str) -> tuple[int, int]:
    found = NAME.fullmatch(name)
    epoch, number = map(int, found.groups()) if found else (0, 0)
    if epoch < 1 or name != _name(epoch, number):
        raise JournalCorrupt(f"there is something in the journal that is no batch: {name!r}")
    return epoch, number
