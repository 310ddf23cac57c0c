"""The tree says of every pipeline what it is, how far it is, and what a move makes of it."""

from dataclasses import replace

from godwit.extractor.job import JobFolder
from godwit.extractor.store import Store
from tests.orchestrator.conftest import Godwit
from tests.orchestrator.live import HALF_WAY, LiveJob, store_state
from tests.planrewrite.graphs import graph, graph_of, pipeline, query, result


def test_the_tree_of_a_running_job(godwit: Godwit, live_job: LiveJob) -> None:
    told = godwit("explain", "etl", "--store", live_job.lease.job.store.uri)
    assert told.out.splitlines() == [
        "etl  running, epoch 1",
        "query 0  collect at prog.py:12  3/6 pipelines finished  parked",
        "└── · 7.5 result  Exchange",
        "    ├── ▶ 7.3 shuffle  3/8 tasks  Exchange",
        "    │   ├── ✔ 7.1 shuffle  kept (read by what is still to run)  3.0 MB  60.0 s  Exchange",
        "    │   │   └── ✔ 7.0 shuffle  covered (beneath 7.1)  2.0 MB  1,000 rows  60.0 s  "
        "Exchange hashpartitioning(a, 8)",
        "    │   └── ✔ 7.2 shuffle  lost (nondeterministic: rand())  1.0 MB  60.0 s  Exchange",
        "    └── · 7.4 shuffle  Exchange",
        "        └── ↑ 7.1 shuffle, drawn above",
        "a move now would keep 1 of 2 needed stages, 3.0 MB",
    ]


def test_a_stored_job_is_drawn_from_its_manifest(godwit: Godwit, store: Store) -> None:
    store_state(JobFolder(store, "etl"))
    lines = godwit("explain", "etl", "--store", store.uri).out.splitlines()
    assert lines[0] == "etl  moved-out, epoch 1"
    assert lines[-1] == "the move kept 1 of 2 needed stages, 3.0 MB"
    assert len(lines) == 10


def test_json_has_the_graph_and_the_fates(godwit: Godwit, live_job: LiveJob) -> None:
    (told,) = godwit("explain", "etl", "--json", "--store", live_job.lease.job.store.uri).json_lines
    fates = {fate["pipeline_id"]: fate["outcome"] for fate in told["fates"]}
    assert fates == {"7.0": "covered", "7.1": "kept", "7.2": "lost"}
    assert told["graph"]["queries"][0]["pipelines"][3]["state"] == "running"
    assert (told["state"], told["kept_bytes"], told["refusals"]) == ("running", 3_000_000, [])


def test_why_nothing_may_be_kept_or_moved_is_said_on_top(godwit: Godwit, live_job: LiveJob) -> None:
    live_job.graph = replace(HALF_WAY, refusal="AQE is off", side_effects=("execution 3 wrote file:/x",))
    lines = godwit("explain", "etl", "--store", live_job.lease.job.store.uri).out.splitlines()
    assert lines[1:3] == [
        "nothing of this session can be kept: AQE is off",
        "a move would be refused: the program has already written: execution 3 wrote file:/x",
    ]
    assert lines[-1] == "a move now would keep 0 of 3 needed stages, 0 bytes"


def test_a_job_between_two_queries_has_none(godwit: Godwit, live_job: LiveJob) -> None:
    live_job.graph = graph_of()
    assert "no query is under way" in godwit("explain", "etl", "--store", live_job.lease.job.store.uri).out


def test_a_pipeline_that_two_queries_read_is_drawn_once(godwit: Godwit, live_job: LiveJob) -> None:
    live_job.graph = graph_of(
        query(pipeline("c", kind="cache"), result("r0", "c")), query(result("r1", "c"), execution=1)
    )
    out = godwit("explain", "etl", "--store", live_job.lease.job.store.uri).out
    assert out.count("✔ c cache") == 1
    assert out.count("↑ c cache, drawn above") == 1


def test_a_finished_pipeline_that_nobody_reads_is_drawn_too(godwit: Godwit, live_job: LiveJob) -> None:
    live_job.graph = graph(pipeline("a"), result("r"))
    out = godwit("explain", "etl", "--store", live_job.lease.job.store.uri).out
    assert "✔ a shuffle  covered (nobody reads it any more)" in out


def test_names_in_square_brackets_are_not_markup(godwit: Godwit, live_job: LiveJob) -> None:
    live_job.graph = graph(pipeline("a", operator="Aggregate [bold] [x#1]"), result("r", "a"))
    assert "Aggregate [bold] [x#1]" in godwit("explain", "etl", "--store", live_job.lease.job.store.uri).out


def test_an_ended_and_a_dead_job_have_nothing_to_show(godwit: Godwit, store: Store) -> None:
    lease = JobFolder(store, "ended").acquire()
    lease.end(ended_at=0, moves=0)
    lease.release()
    JobFolder(store, "dead").acquire().release()
    assert godwit("explain", "ended", "--store", store.uri).out == (
        "job ended has ended; nothing is left of it to keep\n"
    )
    assert "its next run starts afresh" in godwit("explain", "dead", "--store", store.uri).out
    (told,) = godwit("explain", "dead", "--json", "--store", store.uri).json_lines
    assert told["graph"] is None


def test_a_corrupt_manifest_is_65(godwit: Godwit, store: Store) -> None:
    job = JobFolder(store, "etl")
    store_state(job)
    job.store.put(job.key("manifest"), b"rubbish")
    assert godwit("explain", "etl", "--store", store.uri).code == 65
