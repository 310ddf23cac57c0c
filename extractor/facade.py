"""What the agent asks of the driver's JVM, and what it is told: few verbs, and JSON made records.

The agent sees nothing else of Spark. Behind these verbs is the real JVM, or in tests an honest stand-in.
"""

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from godwit.extractor.errors import GodwitError, MoveFailed
from godwit.extractor.manifest import Fragment
from godwit.extractor.workercode import Surroundings
from godwit.planrewrite.stagegraph import Kind


class JvmGone(GodwitError):  # noqa: N818
    exit_code = MoveFailed.exit_code
    next_step = "see the driver's log for why its JVM ended, and run the job again"


@dataclass(frozen=True)
class Notice:
    """Why the JVM wants the job moved: "sigterm", or "stages" (as many have finished as were asked for)."""

    kind: str
    at_ms: int  # since 1970
    grace_ms: int


@dataclass(frozen=True)
class Written:
    """A pipeline's rows, written by the executors below the folder that `extract` was given."""

    pipeline: str
    fingerprint: str
    kind: Kind
    label: str
    size_bytes: int
    rows: int | None
    name: str  # of its own folder in there
    descriptor: bytes


@dataclass(frozen=True)
class NotWritten:
    pipeline: str
    reason: str
    refused: bool  # its rows may not be carried over at all; else something went wrong


@dataclass(frozen=True)
class Extraction:
    written: tuple[Written, ...]
    not_written: tuple[NotWritten, ...]


@dataclass(frozen=True)
class Report:
    """What became of the fragments that were loaded."""

    used: Mapping[str, str]  # fingerprint -> label
    fallbacks: Mapping[str, str]  # fingerprint -> why its rows were computed anew


class Jvm(Protocol):
    def surroundings(self) -> Surroundings:
        """Known before there is a context."""

    def end(self) -> None:
        """The JVM ends by itself, soon."""

    def sees(self, uri: str) -> bool:
        """Whether the JVM finds what Python has put there."""

    def start(self, context: object, stop_after_stages: int | None, grace_ms: int) -> None: ...

    def pinned(self) -> Mapping[str, str]:
        """Spark settings that follow the core count unless they are set: the next driver takes them over."""

    def await_notice(self, timeout_ms: int) -> Notice | None: ...

    def close_gate(self) -> None:
        """From now on queries wait at their next re-planning, new ones before they are planned."""

    def open_gate(self) -> None: ...

    def begin_effect(self, name: str) -> None:
        """Waits while the gate is closed. From then on the program counts as having written."""

    def await_quiet(self, timeout_ms: int) -> bool:
        """True once no Spark job of the program is running."""

    def snapshot(self) -> str: ...

    def extract(self, base_uri: str, pipelines: Mapping[str, str], timeout_ms: int) -> Extraction:
        """Of pipelines by their fingerprints: their ids are those of one picture, and plans change."""

    def load(self, fragments: Mapping[str, Fragment]) -> None:
        """The fragments that queries may use from now on, by the address of their folder."""

    def report(self) -> Report: ...

    def living_process(self) -> int | None:
        """The JVM's process; None once it is gone."""


def load_request(fragments: Mapping[str, Fragment]) -> str:
    return json.dumps(
        {
            "fragments": [
                {
                    "folder": folder_uri,
                    "descriptor": base64.b64encode(fragment.descriptor).decode(),
                    "made_of": fragment.made_of,
                }
                for folder_uri, fragment in fragments.items()
            ]
        }
    )


def parse_extraction(text: str) -> Extraction:
    told = json.loads(text)
    return Extraction(
        tuple(
            Written(
                pipeline=each["pipeline"],
                fingerprint=each["fingerprint"],
                kind=Kind(each["kind"]),
                label=each["label"],
                size_bytes=each["bytes"],
                rows=each.get("rows"),
                name=each["name"],
                descriptor=base64.b64decode(each["descriptor"], validate=True),
            )
            for each in told["fragments"]
        ),
        tuple(NotWritten(each["pipeline"], each["reason"], each["refused"]) for each in told["failed"]),
    )


def parse_report(text: str) -> Report:
    told = json.loads(text)
    return Report(
        used={each["fingerprint"]: each["label"] for each in told["used"]},
        fallbacks={each["fingerprint"]: f"{each['label']}: {each['reason']}" for each in told["fallbacks"]},
    )
