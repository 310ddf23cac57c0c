import hashlib
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from godwit.extractor import journal
from godwit.extractor.errors import GodwitError, ManifestCorrupt, MoveFailed, StoreFull, StoreUnsure
from godwit.extractor.job import JobFolder, JobLease
from godwit.extractor.journal import (
    FORMAT,
    HEADER_BYTES,
    MAGIC,
    Entry,
    Forgotten,
    JournalCorrupt,
    Past,
    Phase,
    Place,
    Record,
    Writer,
    decode,
    encode,
    load,
)
from godwit.planrewrite.records import to_plain
from tests.extractor.samples import new_job

RECORD = Record(
    place=Place("0", 3),
    call="DataFrameWriter.save",
    digest="0f" * 32,
    shown="df.write.save('/out')",
    writes=True,
    targets=("file:///out",),
    phase=Phase.BEGUN,
    answer=None,
    why_no_answer=None,
    epoch=1,
    at=1_700_000_000.5,
)

VOID = Forgotten("0", 1, epoch=1)


def record(number: int = 3, thread: str = "0", **facts: Any) -> Record:
    return replace(RECORD, place=Place(thread, number), **facts)


texts = st.text(st.characters(exclude_categories=()), max_size=5)  # with halves of surrogate pairs
sizes = st.integers(0, 2**63 - 1)
answers = st.one_of(
    st.fixed_dictionaries({"answer": st.binary(max_size=5), "phase": st.just(Phase.DONE)}),
    st.fixed_dictionaries({"why_no_answer": texts, "phase": st.sampled_from(Phase)}),
)
records = st.builds(
    lambda answer, **facts: replace(RECORD, **facts, **answer),
    answers,
    place=st.builds(Place, texts, sizes),
    call=texts,
    digest=st.sampled_from(["0", "00ff"]),
    shown=texts,
    writes=st.booleans(),
    targets=st.lists(texts, max_size=2).map(tuple),
    at=st.floats(0, 2**40),
)
entries = st.lists(records | st.builds(Forgotten, texts, sizes, st.just(1)), min_size=1, max_size=4)


@pytest.fixture
def job(tmp_path: Path) -> JobFolder:
    return new_job(tmp_path)


@pytest.fixture
def lease(job: JobFolder) -> JobLease:
    return job.acquire()


def written_by_a_driver(job: JobFolder, *batches: tuple[Entry, ...]) -> None:
    """Each entry gets the driver's epoch."""
    lease = job.acquire()
    writer = Writer(lease)
    for batch in batches:
        for entry in batch:
            writer.add(replace(entry, epoch=lease.epoch))
        writer.flush()
    lease.release()


def names(job: JobFolder) -> list[str]:
    return job.store.list(job.key("journal"))


def shown(job: JobFolder) -> list[str]:
    return [each.shown for each in load(job).records.values()]


# Batches


def sealed(plain: Any) -> bytes:
    """A batch with this body and a right checksum: as another version, or a bug, might have written it."""
    body: bytes = msgpack.packb(plain)
    return MAGIC + hashlib.sha256(body).digest() + body


def plain_entry(**facts: Any) -> dict[str, Any]:
    return {"record": {**to_plain(RECORD), **facts}, "forgotten": None}


def changed(**facts: Any) -> bytes:
    return sealed({"format": FORMAT, "records": [plain_entry(**facts)]})


def refused(data: bytes) -> str:
    with pytest.raises(JournalCorrupt) as caught:
        decode(data, "000001-000001", 1)
    return str(caught.value)


@settings(deadline=None)
@given(entries)
def test_whatever_is_encoded_is_decoded(kept: list[Entry]) -> None:
    assert decode(encode(kept), "000001-000001", 1) == kept


def test_a_text_that_is_none_is_kept() -> None:
    entry = record(shown="df.write.save('/out\udcff')", targets=("file:///out\udcff",))
    assert decode(encode([entry]), "000001-000001", 1) == [entry]


def test_a_batch_begins_as_documented() -> None:
    data = encode([RECORD])
    assert data[:9] == b"GODWITJ1\n"
    assert data[9:41] == hashlib.sha256(data[41:]).digest()
    assert msgpack.unpackb(data[HEADER_BYTES:])["format"] == FORMAT


def test_any_flipped_bit_is_noticed() -> None:
    data = encode([RECORD, Forgotten("0", 3, 1)])
    for position in range(len(data)):
        for bit in range(8):
            spoilt = bytearray(data)
            spoilt[position] ^= 1 << bit
            refused(bytes(spoilt))


def test_a_batch_that_is_cut_off_anywhere_is_noticed() -> None:
    data = encode([RECORD])
    for length in range(len(data)):
        refused(data[:length])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "does not begin like one"),
        (b"GODWIT1\n the manifest's magic, and long enough to be one", "does not begin like one"),
        (MAGIC + bytes(32), "is cut off after 41 bytes"),
        (MAGIC + bytes(32) + b"\x80", "checksum of batch 000001-000001 of the journal is wrong"),
        (MAGIC + hashlib.sha256(b"\xc1").digest() + b"\xc1", "is not msgpack"),
        (sealed([1]), "is not a map"),
        (sealed({}), f"has format None, this godwit reads format {FORMAT}"),
        (sealed({"format": FORMAT + 1, "novelty": 1}), f"this godwit reads format {FORMAT}"),
        (sealed({"format": FORMAT, "records": []}), "is empty"),
        (sealed({"format": FORMAT}), "missing records"),
        (sealed({"format": FORMAT, "records": [], "novelty": 1}), "unknown novelty"),
        (sealed({"format": FORMAT, "records": [{}]}), "neither a record nor something forgotten"),
        (
            sealed({"format": FORMAT, "records": [{**plain_entry(), "forgotten": to_plain(VOID)}]}),
            "neither a record nor something forgotten",
        ),
        (changed(novelty=1), "unknown novelty"),
        (changed(phase="undone"), "'undone' is none of begun, done, failed"),
        (changed(writes=1), "writes: expected bool, found int"),
        (changed(targets="a"), "targets: expected list, found str"),
        (changed(answer="a"), "answer: expected bytes, found str"),
        (changed(place=["0", 3]), "place: expected dict, found list"),
        (changed(epoch=2), "an entry is of driver 2"),
        (changed(place={"thread": "0", "number": -1}), "the number of an action is -1"),
        (changed(digest="../x"), "the digest of an action is '../x'"),
        (changed(digest=""), "the digest of an action is ''"),
        (changed(answer=b"a"), "has an answer that is begun"),
        (changed(answer=b"a", phase="done", why_no_answer="too large"), "and a reason why it has none"),
        (
            sealed({"format": FORMAT, "records": [{"forgotten": to_plain(replace(VOID, epoch=2))}]}),
            "an entry is of driver 2",
        ),
    ],
)
def test_what_is_not_exactly_a_batch_is_refused(data: bytes, message: str) -> None:
    assert message in refused(data)


def test_a_corrupt_journal_is_an_error_like_a_corrupt_manifest() -> None:
    error = JournalCorrupt("text")
    assert isinstance(error, GodwitError)
    assert (error.exit_code, error.next_step) == (65, ManifestCorrupt("text").next_step)


# What the next driver finds


def test_a_job_without_a_journal_has_no_past(job: JobFolder) -> None:
    past = load(job)
    assert past.is_empty
    assert past.at(Place("0", 1)) is None
    assert past.writes_from({}) == []


def test_what_one_driver_has_recorded_the_next_one_finds(job: JobFolder) -> None:
    answered = record(4, phase=Phase.DONE, writes=False, answer=b"\x01")
    written_by_a_driver(job, (RECORD, answered))
    past = load(job)
    assert not past.is_empty
    assert past.at(RECORD.place) == RECORD
    assert past.at(answered.place) == answered
    assert past.at(Place("0.1", 3)) is None


def test_the_latest_phase_of_the_latest_driver_counts(job: JobFolder) -> None:
    written_by_a_driver(job, (record(1), record(2)), (record(1, phase=Phase.DONE),))
    written_by_a_driver(job, (record(2, phase=Phase.FAILED),), (record(2, digest="aa"),))
    past = load(job)
    assert past.at(Place("0", 1)) == record(1, phase=Phase.DONE)
    assert past.at(Place("0", 2)) == record(2, digest="aa", epoch=2)


def test_batches_are_read_in_the_order_of_their_numbers_however_many_there_are(job: JobFolder) -> None:
    job.store.put(job.key("epoch"), b"999998")
    written_by_a_driver(job, (record(1, shown="a"),))
    written_by_a_driver(job, *((record(1, shown=str(number)),) for number in range(11)))
    assert names(job)[0] == "1000000-000001"
    assert shown(job) == ["10"]


def test_where_the_program_went_another_way_the_rest_of_that_thread_is_void(job: JobFolder) -> None:
    first = [record(number, thread) for thread in ("0", "0.1") for number in (1, 2, 3)]
    written_by_a_driver(job, tuple(first))
    written_by_a_driver(job, (Forgotten("0", 2, 0), record(2, digest="bb")))
    past = load(job)
    assert {(place.thread, place.number): each.epoch for place, each in past.records.items()} == {
        **{("0", 1): 1, ("0", 2): 2},
        **{("0.1", 1): 1, ("0.1", 2): 1, ("0.1", 3): 1},
    }


def test_a_journal_of_which_all_is_forgotten_is_empty(job: JobFolder) -> None:
    written_by_a_driver(job, (record(1), record(2)))
    written_by_a_driver(job, (Forgotten("0", 1, 0),))
    assert load(job).is_empty


def test_writes_that_lie_ahead_are_told_oldest_first() -> None:
    done, failed = Phase.DONE, Phase.FAILED
    all_of_them = [
        record(1, at=1.0, shown="passed"),
        record(5, at=9.0, shown="last"),
        record(4, at=8.0, shown="failed", phase=failed),
        record(3, at=7.0, shown="done", phase=done),
        record(2, at=6.0, shown="only read", writes=False),
        record(0, "0.1", at=5.0, shown="in a thread that has not begun"),
        record(6, "0.2", at=4.0, shown="in a thread that is not there yet"),
        record(5, "0.2", at=3.0, shown="passed in another thread"),
    ]
    past = Past({each.place: each for each in all_of_them})
    assert [each.shown for each in past.writes_from({"0": 2, "0.2": 6})] == [
        "in a thread that is not there yet",
        "in a thread that has not begun",
        "done",
        "last",
    ]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("000001-000001", None, "batch 000001-000001 of the journal is missing"),
        ("000001-000002", None, "batch 000001-000002 of the journal is missing"),
        ("000002-000001", None, "batch 000002-000001 of the journal is missing"),
        (
            "000003-000001",
            encode([RECORD]),
            "000003-000001 of the journal cannot be: an entry is of driver 1",
        ),
        ("000001-000002", b"", "batch 000001-000002 of the journal does not begin like one"),
        ("notes", b"", "no batch: 'notes'"),
        ("0000001-000001", b"", "no batch: '0000001-000001'"),
        ("000000-000001", b"", "no batch: '000000-000001'"),
    ],
)
def test_a_journal_that_is_not_whole_is_refused(
    job: JobFolder, name: str, content: bytes | None, message: str
) -> None:
    for _ in range(2):
        written_by_a_driver(job, (record(1),), (record(2),), (record(3),))
    if content is None:
        job.store.delete(job.key(f"journal/{name}"))
    else:
        job.store.put(job.key(f"journal/{name}"), content)
    with pytest.raises(JournalCorrupt, match=message):
        load(job)


# Writing


def test_what_is_added_is_written_with_the_next_flush_in_one_batch(job: JobFolder, lease: JobLease) -> None:
    writer = Writer(lease)
    writer.flush()
    writer.add(record(1))
    writer.add(record(2))
    assert load(job).is_empty
    writer.flush()
    writer.flush()
    assert names(job) == ["000001-000001"]
    writer.add_durably(record(3))
    assert names(job) == ["000001-000001", "000001-000002"]
    assert len(load(job).records) == 3


def test_what_cannot_be_is_not_recorded(job: JobFolder, lease: JobLease) -> None:
    writer = Writer(lease)
    for entry in (record(epoch=2), record(-1), record(digest="x"), record(answer=b""), Forgotten("0", 1, 2)):
        with pytest.raises(ValueError, match="not to be recorded by driver 1"):
            writer.add(entry)
    writer.flush()
    assert names(job) == []


def test_a_driver_that_lost_the_job_records_nothing(job: JobFolder, lease: JobLease) -> None:
    writer = Writer(lease)
    job.store.put(job.key("epoch"), b"2")
    with pytest.raises(MoveFailed, match="driver 2 of job etl has taken over from driver 1"):
        writer.add_durably(RECORD)
    assert names(job) == []


def test_a_batch_that_somebody_else_has_written_is_left_alone(job: JobFolder, lease: JobLease) -> None:
    theirs = encode([record(shown="theirs")])
    job.store.put(job.key("journal/000001-000001"), theirs)
    writer = Writer(lease)
    writer.add(RECORD)
    for _ in range(2):
        with pytest.raises(MoveFailed, match="another driver of job etl has taken over from driver 1"):
            writer.flush()
    assert job.store.get(job.key("journal/000001-000001")) == theirs


class Failing:
    """The job's store, but `create` fails: before it has done it, or after."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, job: JobFolder) -> None:
        self.error: GodwitError | None = None
        self.writes_all_the_same = False
        self._create, self._put = job.store.create, job.store.put
        self.puts: list[str] = []
        monkeypatch.setattr(job.store, "create", self.create)
        monkeypatch.setattr(job.store, "put", self.put)

    def create(self, key: str, value: bytes) -> bool:
        if self.error is None or self.writes_all_the_same:
            created = self._create(key, value)
        if self.error is not None:
            raise self.error
        return created

    def put(self, key: str, value: bytes, *, private: bool = False) -> None:
        self.puts.append(key)
        if self.error is not None:
            raise self.error
        self._put(key, value, private=private)


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch, job: JobFolder, lease: JobLease) -> Failing:
    return Failing(monkeypatch, job)


@pytest.mark.parametrize("error", [StoreFull("full"), StoreUnsure("broke off")])
def test_what_could_not_be_written_is_written_by_the_next_flush(
    job: JobFolder, lease: JobLease, failing: Failing, error: GodwitError
) -> None:
    writer = Writer(lease)
    failing.error = error
    for number in (1, 2):
        with pytest.raises(type(error)):
            writer.add_durably(record(number))
    assert names(job) == []
    failing.error = None
    writer.add_durably(record(3))
    assert [place.number for place in load(job).records] == [1, 2, 3]
    assert failing.puts == []


def test_a_batch_that_was_written_although_the_store_failed_is_not_written_twice(
    job: JobFolder, lease: JobLease, failing: Failing
) -> None:
    writer = Writer(lease)
    failing.error, failing.writes_all_the_same = StoreUnsure("broke off"), True
    with pytest.raises(StoreUnsure):
        writer.add_durably(record(1))
    # It is there, but until the store has said so once it may be lost again.
    with pytest.raises(StoreUnsure):
        writer.flush()
    failing.error = None
    writer.add_durably(record(2))
    writer.flush()
    assert names(job) == ["000001-000001", "000001-000002"]
    assert [place.number for place in load(job).records] == [1, 2]
    assert failing.puts == [job.key("journal/000001-000001")] * 2


def test_a_batch_that_appears_late_is_known_for_our_own(
    job: JobFolder, lease: JobLease, failing: Failing
) -> None:
    writer = Writer(lease)
    failing.error = StoreUnsure("broke off")
    with pytest.raises(StoreUnsure):
        writer.add_durably(record(1))
    failing.error = None
    job.store.put(job.key("journal/000001-000001"), encode([record(1)]))
    writer.add_durably(record(2))
    assert [place.number for place in load(job).records] == [1, 2]


def test_what_another_thread_adds_while_a_flush_is_under_way_is_kept_for_the_next(
    job: JobFolder, lease: JobLease, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = Writer(lease)
    create = job.store.create

    def slow(key: str, value: bytes) -> bool:
        monkeypatch.setattr(job.store, "create", create)
        other = threading.Thread(target=writer.add, args=(record(2),))
        other.start()
        other.join()
        return create(key, value)

    monkeypatch.setattr(job.store, "create", slow)
    writer.add_durably(record(1))
    assert [place.number for place in load(job).records] == [1]
    writer.flush()
    assert [place.number for place in load(job).records] == [1, 2]


def test_all_that_many_threads_record_durably_is_there_when_they_are_told_so(
    job: JobFolder, lease: JobLease
) -> None:
    writer = Writer(lease)
    missing: list[Place] = []

    def act(thread: str) -> None:
        for number in range(5):
            writer.add_durably(record(number, thread))
            if load(job).at(Place(thread, number)) is None:
                missing.append(Place(thread, number))

    threads = [threading.Thread(target=act, args=(f"0.{each}",)) for each in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert missing == []
    assert len(load(job).records) == 20


# The end of a job


def test_a_program_that_has_ended_leaves_no_journal(job: JobFolder) -> None:
    written_by_a_driver(job, (RECORD,))
    lease = job.acquire()
    lease.end(ended_at=5.0, moves=0)
    lease.release()
    assert names(job) == []


def test_the_journal_of_a_program_that_has_ended_counts_for_nobody(job: JobFolder) -> None:
    written_by_a_driver(job, (RECORD,))
    left = job.store.get(job.key("journal/000001-000001"))
    lease = job.acquire()
    lease.end(ended_at=5.0, moves=0)
    lease.release()
    job.store.put(job.key("journal/000001-000001"), left or b"")  # as if it was killed while it tidied up
    assert load(job).is_empty
    lease = job.acquire()
    assert names(job) == []
    assert load(job).is_empty
    lease.release()


def test_a_program_that_failed_keeps_its_journal(job: JobFolder) -> None:
    written_by_a_driver(job, (RECORD,))
    job.acquire().release()
    assert load(job).at(RECORD.place) == RECORD


def test_a_job_that_is_dropped_loses_its_journal_before_anything_else(
    job: JobFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    written_by_a_driver(job, (RECORD,))
    deleted: list[str] = []
    delete = job.store.delete

    def noted(key: str) -> None:
        deleted.append(key)
        delete(key)

    monkeypatch.setattr(job.store, "delete", noted)
    job.drop()
    assert deleted[0] == job.key("journal")
    assert deleted[-1] == job.key("lock")
    assert job.store.list("jobs/etl") == []


def test_the_folder_of_the_journal_is_the_one_that_a_job_removes() -> None:
    assert journal.FOLDER == "journal"
