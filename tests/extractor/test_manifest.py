import hashlib
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from godwit.extractor.errors import ManifestCorrupt
from godwit.extractor.manifest import FORMAT, HEADER_BYTES, MAGIC, Fragment, Manifest, decode, encode
from godwit.extractor.program import Module, Program
from godwit.planrewrite.records import to_plain
from godwit.planrewrite.select import Chosen, Skipped, StateSelection
from godwit.planrewrite.stagegraph import Kind
from tests.extractor.samples import MANIFEST, fragment, manifest

texts = st.text(max_size=8)
sizes = st.integers(0, 2**63 - 1)
shas = st.none() | texts
programs = st.builds(
    Program,
    texts,
    shas,
    st.tuples(texts),
    st.tuples(st.builds(Module, texts, texts, shas)),
    texts,
    texts,
    texts,
)
fragments = st.builds(
    Fragment,
    fingerprint=st.sampled_from(["0", "00ff"]),
    kind=st.sampled_from([Kind.SHUFFLE, Kind.BROADCAST]),
    label=texts,
    bytes=sizes,
    rows=st.none() | sizes,
    folder=st.sampled_from(["blocks/1-00", "blocks/1-00/f0"]),
    descriptor=st.binary(max_size=8),
    pipeline=texts,
)
selections = st.builds(
    StateSelection,
    st.tuples(st.builds(Chosen, texts, sizes)),
    st.tuples(st.builds(Skipped, texts, texts)),
)
manifests = st.builds(
    Manifest,
    job=texts,
    epoch=st.integers(1, 2**31),
    moves=st.integers(0, 2**31),
    written_at=st.floats(0, 2**40),
    spark_version=texts,
    program=programs,
    sql_conf=st.dictionaries(texts, texts, max_size=2),
    snapshot=texts,
    selection=selections,
    fragments=st.lists(fragments, max_size=2).map(tuple),
)


def sealed(plain: Any) -> bytes:
    """A file with this body and a right checksum: as another version, or a bug, might have written it."""
    body: bytes = msgpack.packb(plain)
    return MAGIC + hashlib.sha256(body).digest() + body


def changed(**facts: Any) -> bytes:
    return sealed({"format": FORMAT, **to_plain(MANIFEST), **facts})


def refused(data: bytes) -> str:
    with pytest.raises(ManifestCorrupt) as caught:
        decode(data)
    return str(caught.value)


@settings(deadline=None)
@given(manifests)
def test_whatever_is_encoded_is_decoded(kept: Manifest) -> None:
    assert decode(encode(kept)) == kept


def test_any_flipped_bit_is_noticed() -> None:
    data = encode(manifest(fragments=()))
    for position in range(len(data)):
        for bit in range(8):
            spoilt = bytearray(data)
            spoilt[position] ^= 1 << bit
            refused(bytes(spoilt))


def test_a_file_that_is_cut_off_anywhere_is_noticed() -> None:
    data = encode(MANIFEST)
    for length in range(len(data)):
        refused(data[:length])


def test_bytes_behind_the_end_are_noticed() -> None:
    assert "checksum" in refused(encode(MANIFEST) + b"\0")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "does not begin like one"),
        (b"PAR1 something else altogether, long enough to be one", "does not begin like one"),
        (MAGIC, "is cut off after 8 bytes"),
        (MAGIC + bytes(32), "is cut off after 40 bytes"),
        (MAGIC + bytes(32) + b"\x80", "checksum is wrong"),
        (MAGIC + hashlib.sha256(b"\xc1").digest() + b"\xc1", "is not msgpack"),
        (sealed([1]), "is not a map"),
        (sealed({}), f"has format None, this godwit reads format {FORMAT}"),
        (changed(format=FORMAT - 1), f"has format {FORMAT - 1}, this godwit reads format {FORMAT}"),
        (
            changed(format=FORMAT - 1, novelty=1),
            f"has format {FORMAT - 1}, this godwit reads format {FORMAT}",
        ),
        (changed(novelty=1), "manifest: unknown novelty"),
        (changed(epoch="1"), "manifest.epoch: expected int, found str"),
        (changed(epoch=0), "epoch or moves out of range"),
        (changed(moves=True), "manifest.moves: expected int, found bool"),
        (changed(job=b"etl"), "manifest.job: expected str, found bytes"),
        (changed(sql_conf={"a": 1}), "manifest.sql_conf.a: expected str, found int"),
        (changed(sql_conf={1: "a"}), "is not msgpack"),
        (changed(program=None), "manifest.program: expected dict, found NoneType"),
        (changed(selection={"chosen": []}), "manifest.selection: missing skipped"),
    ],
)
def test_what_is_not_exactly_a_manifest_is_refused(data: bytes, message: str) -> None:
    assert message in refused(data)


@pytest.mark.parametrize("field", sorted(to_plain(MANIFEST)))
def test_every_field_is_required(field: str) -> None:
    plain = {"format": FORMAT, **to_plain(MANIFEST)}
    del plain[field]
    assert refused(sealed(plain)) == f"manifest: missing {field}"


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"kind": Kind.RESULT}, "a result is never stored"),
        ({"folder": "../../other/blocks"}, "folder is '../../other/blocks'"),
        ({"folder": "blocks/../../x"}, "folder is"),
        ({"folder": "/etc"}, "folder is"),
        ({"folder": "blocks"}, "folder is"),
        ({"folder": "blocks/a\n"}, "folder is"),
        ({"fingerprint": ""}, "fingerprint is ''"),
        ({"fingerprint": "../manifest"}, "fingerprint is '../manifest'"),
        ({"bytes": -1}, "negative size"),
        ({"rows": -1}, "negative size"),
    ],
)
def test_a_fragment_that_cannot_be_is_refused(facts: dict[str, Any], message: str) -> None:
    assert message in refused(encode(manifest(fragments=(fragment(**facts),))))


def test_a_manifest_begins_as_documented() -> None:
    data = encode(MANIFEST)
    assert data[:8] == b"GODWIT1\n"
    assert data[8:40] == hashlib.sha256(data[40:]).digest()
    assert msgpack.unpackb(data[HEADER_BYTES:])["format"] == FORMAT
