"""What a job is doing is known in two places: its live driver, and, once that is gone, its manifest.

Both give the same thing, a stage graph; who draws it or counts in it need not care which of them was asked.
"""

from dataclasses import dataclass

from godwit.extractor.control import ControlClient, DriverUnreachable
from godwit.extractor.errors import ManifestCorrupt
from godwit.extractor.job import JobState, JobView
from godwit.planrewrite.select import StateSelection, select
from godwit.planrewrite.stagegraph import SnapshotError, StageGraph


@dataclass(frozen=True)
class Observation:
    """A job's stage graph, and what of it is state: what a move would keep now, or what the last one kept."""

    graph: StageGraph
    selection: StateSelection

    @property
    def kept_bytes(self) -> int:
        """The size of the state, in the store or not."""
        return self.graph.bytes_of(chosen.pipeline_id for chosen in self.selection.chosen)


def observe(view: JobView) -> Observation | None:
    """None: there is nothing to see, as the job has ended, or died without leaving state."""
    if view.state is JobState.RUNNING:
        return _asked(view)
    if view.problem:
        raise ManifestCorrupt(view.problem)
    if view.manifest:
        return _stored(view.manifest.snapshot, view.manifest.selection)
    return None


def control_of(view: JobView) -> ControlClient:
    if view.running is None:
        raise DriverUnreachable(f"the driver of {view.name} has not said yet where it can be asked")
    return ControlClient(view.running.endpoint, view.running.token)


def _asked(view: JobView) -> Observation:
    try:
        graph = StageGraph.from_json(control_of(view).snapshot())
    except SnapshotError as error:
        raise DriverUnreachable(f"the driver of {view.name} answers in another language: {error}") from error
    return Observation(graph, select(graph))


def _stored(snapshot: str, selection: StateSelection) -> Observation:
    try:
        return Observation(StageGraph.from_json(snapshot), selection)
    except SnapshotError as error:
        raise ManifestCorrupt(str(error)) from error
