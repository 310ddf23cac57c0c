"""A driver dies; the next one must know exactly what it left behind, or know that it cannot know.

The manifest is that knowledge: which fragments of which pipelines lie where, and what program, versions and
conf made them. It is written last, so its presence is the commit. It is small; the bulk stays beside it.

    b"GODWIT1\\n"  32 bytes of SHA-256 over the rest  msgpack of `Manifest`

Whatever does not decode into exactly this, without a doubt, is ManifestCorrupt.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgpack

from godwit.extractor.errors import ManifestCorrupt
from godwit.extractor.program import Program
from godwit.planrewrite.records import RecordError, from_plain, to_plain
from godwit.planrewrite.select import StateSelection
from godwit.planrewrite.stagegraph import Kind

MAGIC = b"GODWIT1\n"
FORMAT = 7
HEADER_BYTES = len(MAGIC) + hashlib.sha256().digest_size

STORABLE = (Kind.SHUFFLE, Kind.BROADCAST, Kind.CACHE)
FOLDER = re.compile(r"blocks(/[A-Za-z0-9][A-Za-z0-9_-]*)+")
FINGERPRINT = re.compile(r"[0-9a-f]+")


Descriptor = bytes
"""What the JVM needs to read a fragment; made and understood by the JVM alone."""


@dataclass(frozen=True)
class Fragment:
    """The stored rows of one pipeline."""

    fingerprint: str
    kind: Kind
    label: str
    bytes: int
    rows: int | None  # None is "unknown", never zero
    folder: str  # relative to the job's folder: "blocks/3-1a2b3c4d/f0"
    descriptor: Descriptor
    pipeline: str  # its id in the snapshot
    made_of: tuple[str, ...] = ()  # fingerprints of what another run gives otherwise: see `decide.fragment`
    stands_on: tuple[str, ...] = ()  # of these the cached tables: kept with it, or it is not kept


@dataclass(frozen=True)
class Manifest:
    job: str
    epoch: int  # of the driver that wrote it
    moves: int  # of this job so far, this one included
    written_at: float  # seconds since 1970
    spark_version: str  # of the JVM; that of the Python side is the program's
    program: Program
    sql_conf: Mapping[str, str]  # what the next driver takes over
    snapshot: str  # the stage graph that the state was selected from
    selection: StateSelection
    fragments: tuple[Fragment, ...]


def encode(manifest: Manifest) -> bytes:
    body: bytes = msgpack.packb({"format": FORMAT, **to_plain(manifest)})
    return MAGIC + hashlib.sha256(body).digest() + body


def decode(data: bytes) -> Manifest:
    plain = _unpacked(_verified(data))
    written_as = plain.pop("format", None)
    if written_as != FORMAT:
        raise ManifestCorrupt(f"the manifest has format {written_as!r}, this godwit reads format {FORMAT}")
    try:
        manifest = from_plain(Manifest, plain, "manifest")
    except RecordError as error:
        raise ManifestCorrupt(str(error)) from error
    _check(manifest)
    return manifest


def _verified(data: bytes) -> bytes:
    if not data.startswith(MAGIC):
        raise ManifestCorrupt("the manifest does not begin like one")
    if len(data) <= HEADER_BYTES:
        raise ManifestCorrupt(f"the manifest is cut off after {len(data)} bytes")
    body = data[HEADER_BYTES:]
    if hashlib.sha256(body).digest() != data[len(MAGIC) : HEADER_BYTES]:
        raise ManifestCorrupt("the manifest's checksum is wrong: it is cut off or was changed")
    return body


def _unpacked(body: bytes) -> dict[str, Any]:
    try:
        plain = msgpack.unpackb(body)
    except (ValueError, msgpack.UnpackException) as error:
        raise ManifestCorrupt(f"the manifest is not msgpack: {error}") from error
    if not isinstance(plain, dict):
        raise ManifestCorrupt("the manifest is not a map")
    return plain


def _check(manifest: Manifest) -> None:
    if manifest.epoch < 1 or manifest.moves < 0:
        raise ManifestCorrupt("manifest: epoch or moves out of range")
    for fragment in manifest.fragments:
        if fragment.kind not in STORABLE:
            raise ManifestCorrupt(f"manifest: a {fragment.kind} is never stored")
        if not FOLDER.fullmatch(fragment.folder):
            raise ManifestCorrupt(f"manifest: a fragment's folder is {fragment.folder!r}")
        if not FINGERPRINT.fullmatch(fragment.fingerprint):
            raise ManifestCorrupt(f"manifest: a fragment's fingerprint is {fragment.fingerprint!r}")
        if fragment.bytes < 0 or (fragment.rows or 0) < 0:
            raise ManifestCorrupt(f"manifest: {fragment.label} has a negative size")
