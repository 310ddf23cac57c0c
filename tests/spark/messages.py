"""What the rig and its two drivers say to each other: pickled, a request and its reply at a time."""

from collections.abc import Mapping
from dataclasses import dataclass

from tests.spark.features import Plan
from tests.spark.questions import Question
from tests.tpc.compare import Order, Row


@dataclass(frozen=True)
class Shape:
    """Have a SparkContext with this conf, in place of any that there is."""

    conf: Mapping[str, str]
    carried: Mapping[str, str]  # from the driver before, as a manifest's `sql_conf`


@dataclass(frozen=True)
class Shaped:
    pinned: Mapping[str, str]  # what the next driver takes over


@dataclass(frozen=True)
class Explain:
    """Plan the question, and do not run it."""

    question: Question


@dataclass(frozen=True)
class Explained:
    plan: str


@dataclass(frozen=True)
class Run:
    """Answer the question from source."""

    question: Question


@dataclass(frozen=True)
class Capture:
    """Answer the question; on the way move it out, as a job of its own, at every point or at one."""

    question: Question
    store_uri: str
    at: int | None  # once so many of its stages have finished; None: at every re-planning that finds one
    drain: bool


@dataclass(frozen=True)
class Resume:
    """Answer the question from what this job has stored."""

    question: Question
    store_uri: str
    job: str


@dataclass(frozen=True)
class Answer:
    rows: list[Row]
    order: Order
    stages: int  # query stages that ran for it here


@dataclass(frozen=True)
class Ran:
    answer: Answer
    plan: Plan


@dataclass(frozen=True)
class Point:
    """A moment at which the query was moved out."""

    job: str
    failure: str | None  # of the move; then there is nothing to resume


@dataclass(frozen=True)
class Captured:
    answer: Answer
    points: tuple[Point, ...]


@dataclass(frozen=True)
class Resumed:
    answer: Answer
    used: Mapping[str, str]  # fingerprint -> label
    fallbacks: Mapping[str, str]  # fingerprint -> reason
    ran: frozenset[str]  # fingerprints of the exchanges that were computed


@dataclass(frozen=True)
class Trouble:
    """What was raised instead of an answer."""

    what: str


Request = Shape | Explain | Run | Capture | Resume
Reply = Shaped | Explained | Ran | Captured | Resumed | Trouble
