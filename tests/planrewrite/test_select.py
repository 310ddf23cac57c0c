import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from godwit.planrewrite.select import (
    MOVE_BYTES_PER_MS,
    MOVE_SETUP_MS,
    StateSelection,
    final_plan,
    kept_and_lost,
    modify_plan,
    select,
    select_state_operators,
    why_not_worth_moving,
)
from godwit.planrewrite.stagegraph import Kind, Pipeline, StageGraph
from tests.planrewrite.graphs import (
    graph,
    graph_of,
    papers_example,
    pipeline,
    query,
    random_graphs,
    result,
)


def chosen(selection: StateSelection) -> str:
    return " ".join(each.pipeline_id for each in selection.chosen)


def skipped(selection: StateSelection) -> dict[str, str]:
    return {each.pipeline_id: each.reason for each in selection.skipped}


def fates(taken: StageGraph, selection: StateSelection) -> dict[str, tuple[str, str]]:
    return {fate.pipeline_id: (fate.outcome, fate.reason) for fate in kept_and_lost(taken, selection)}


# What another run gives otherwise


def sums(**facts: Any) -> StageGraph:
    """`j`, which waits, reads the sums and their maximum."""
    largest = pipeline("m", "a", bytes=100)
    return graph(pipeline("a", **facts), largest, pipeline("j", "a m", "waiting"), result("r", "j"))


def test_the_maximum_of_sums_is_not_kept_where_the_sums_run_again() -> None:
    taken = sums(bytes=10_000_000_000, repeatable=False)
    selection = select(taken, budget_bytes=1_000_000)
    assert chosen(selection) == ""
    assert skipped(selection) == {
        "a": "does not fit into 1,000,000 bytes",
        "m": "stands on values that must be computed again, and may then be others",
    }


def test_it_is_kept_where_the_sums_are_exact_or_kept_as_well() -> None:
    assert chosen(select(sums(bytes=10_000_000_000), budget_bytes=1_000_000)) == "m"
    assert chosen(select(sums(repeatable=False))) == "a m"


def test_a_broadcast_of_sums_is_kept_however_cheap_it_is() -> None:
    cheap = {"kind": "broadcast", "run_ms": 0, "bytes": 100}
    assert chosen(select(sums(**cheap))) == "m"
    assert chosen(select(sums(**cheap, repeatable=False))) == "a m"


def test_what_was_filtered_by_the_value_of_a_subquery_stands_on_it() -> None:
    value = pipeline("s", "a", kind="subquery", fingerprint=None, repeatable=False)
    filtered, rest = pipeline("m", "s"), pipeline("j", "s m", "waiting")
    assert chosen(select(graph(pipeline("a"), value, filtered, rest, result("r", "j")))) == "a"


def test_what_was_made_of_the_value_of_a_subquery_is_kept_only_if_that_repeats() -> None:
    """Nothing names the value, so that the next driver could not tell whether it comes by another."""
    for repeatable, state in ((True, "m"), (False, "a")):
        value = pipeline("s", "a", kind="subquery", fingerprint=None, repeatable=repeatable)
        filtered = pipeline("m", "s", repeatable=repeatable)
        taken = graph(pipeline("a", repeatable=repeatable), value, filtered, result("r", "m"))
        assert chosen(select(taken)) == state


@pytest.mark.parametrize(("repeatable", "state"), [(True, "a m"), (False, "")])
def test_two_queries_that_each_have_their_own_sums_keep_none(repeatable: bool, state: str) -> None:
    """One reads the sums and their maximum, the other the sums alone: which of the two are stored?"""
    facts = {"fingerprint": "same", "repeatable": repeatable}
    first = [pipeline("a", **facts), pipeline("m", "a", repeatable=repeatable), result("r", "a m")]
    second = [pipeline("b", **facts), result("s", "b")]
    taken = graph_of(query(*first), query(*second, execution=1))
    assert chosen(select(taken)) == state
    assert (len(taken.pipelines) == 4) == repeatable
    if not repeatable:
        assert set(skipped(select(taken)).values()) == {
            "several queries have it, and its values do not repeat: each has its own"
        }


def table_of_sums(**facts: Any) -> StageGraph:
    """The maximum of a cached table of sums, which is all that this query has still to read."""
    table = pipeline("t", kind="cache", **{"repeatable": False, **facts})
    return graph(table, pipeline("m", "t", bytes=100, repeatable=False), result("r", "m"))


def test_a_cached_table_is_kept_with_what_was_made_of_it_as_other_queries_read_it_too() -> None:
    taken = table_of_sums()
    selection = select(taken)
    assert chosen(selection) == "m t"
    assert fates(taken, selection)["t"] == (
        "kept",
        "what was made of it is kept, and its values do not repeat",
    )


def test_a_table_of_values_that_repeat_is_not_kept_with_it() -> None:
    assert chosen(select(table_of_sums(repeatable=True))) == "m"


def test_what_was_made_of_a_table_that_cannot_be_kept_is_not_kept_either() -> None:
    selection = select(table_of_sums(refusal="nondeterministic"))
    assert chosen(selection) == ""
    assert skipped(selection) == {
        "m": "stands on values that must be computed again, and may then be others",
        "t": "nondeterministic",
    }
    assert chosen(select(table_of_sums(bytes=10_000_000_000), budget_bytes=1_000_000)) == ""


def test_a_table_that_is_only_filled_in_part_cannot_be_kept() -> None:
    assert chosen(select(table_of_sums(state="running"))) == ""


# The paper's running example


@pytest.mark.parametrize(
    ("finished", "state"), [(0, ""), (1, "1"), (2, "2"), (3, "2 3"), (4, "2 4"), (5, "2 4 5"), (6, "")]
)
def test_the_papers_example_has_the_papers_state_after_each_pipeline(finished: int, state: str) -> None:
    assert chosen(select(papers_example(finished))) == state


def test_after_pipeline_4_the_paper_discards_1_and_3_as_their_dependents_have_finished() -> None:
    taken = papers_example(4)
    selection = select(taken)
    assert skipped(selection) == {}
    assert fates(taken, selection) == {
        "1": ("covered", "beneath 2"),
        "2": ("kept", "read by what is still to run"),
        "3": ("covered", "beneath 4"),
        "4": ("kept", "read by what is still to run"),
    }


def test_of_conflicting_replacements_the_topmost_takes_place() -> None:
    # Pipeline 2 is read by 6, and by 3 beneath 4, which is itself replaced: only the first location is valid.
    taken = papers_example(5)
    assert final_plan(taken, {"2", "3", "4", "5"}) == {"2", "4", "5", "6"}
    assert modify_plan(taken, {"1", "2", "3", "4", "5"}) == {"2", "4", "5"}


# What can be carried over


def test_a_stage_that_nobody_reads_is_not_state() -> None:
    taken = graph(pipeline("a"), pipeline("b"), result("r", "b"))
    assert chosen(select(taken)) == "b"
    assert fates(taken, select(taken))["a"] == ("covered", "nobody reads it any more")


def test_beneath_a_refused_stage_its_inputs_are_state() -> None:
    taken = graph(
        pipeline("a"), pipeline("b"), pipeline("c", "a b", refusal="calls rand()"), result("r", "c")
    )
    assert chosen(select(taken)) == "a b"
    assert skipped(select(taken)) == {"c": "calls rand()"}
    assert fates(taken, select(taken))["c"] == ("lost", "calls rand()")


def test_a_refused_stage_beneath_a_kept_one_asks_for_nothing() -> None:
    taken = graph(pipeline("a"), pipeline("b", "a", refusal="x"), pipeline("c", "b"), result("r", "c"))
    assert chosen(select(taken)) == "c"
    assert skipped(select(taken)) == {}


def test_a_shared_stage_is_state_if_any_path_needs_it() -> None:
    above = [pipeline("b", "a"), pipeline("c", "a", refusal="x")]
    assert chosen(select(graph(pipeline("a"), *above, result("r", "b c")))) == "a b"


def test_a_stage_without_a_fingerprint_is_never_state() -> None:
    taken = graph(pipeline("a"), pipeline("b", "a", fingerprint=None), result("r", "b"))
    assert chosen(select(taken)) == "a"
    assert skipped(select(taken)) == {"b": "has no fingerprint to be found by"}


def test_a_finished_subquery_is_computed_again_from_the_stages_beneath_it() -> None:
    taken = graph(pipeline("a"), pipeline("s", "a", kind="subquery"), result("r", "s"))
    assert chosen(select(taken)) == "a"
    assert skipped(select(taken)) == {"s": "a subquery is computed again from what lies beneath it"}


def test_a_running_stage_is_lost_but_what_it_reads_is_kept() -> None:
    taken = graph(pipeline("a"), pipeline("b", "a", "running"), result("r", "b"))
    assert chosen(select(taken)) == "a"
    assert skipped(select(taken)) == {}


def test_nothing_of_a_refused_session_is_state_and_each_loss_says_why() -> None:
    taken = graph(pipeline("a"), pipeline("b", "a"), result("r", "b"), refusal="AQE is off")
    assert select(taken).chosen == ()
    assert skipped(select(taken)) == {"a": "AQE is off", "b": "AQE is off"}


def test_every_query_of_the_graph_gives_its_state() -> None:
    one = query(pipeline("a"), result("r", "a"), execution=1)
    two = query(pipeline("b"), pipeline("c", "b"), result("s", "a c"), execution=2)
    assert chosen(select(graph_of(one, two))) == "a c"


def test_a_stage_made_by_aqe_on_the_way_travels_together_with_what_it_was_made_of() -> None:
    made = pipeline("b", "a", kind="broadcast", in_initial_plan=False)
    taken = graph(pipeline("0"), pipeline("a", "0"), made, result("r", "b"))
    assert chosen(select(taken)) == "a b"


# Broadcasts and cached tables: only where moving is cheaper


def test_the_cost_rule_compares_building_again_with_moving() -> None:
    move_ms = MOVE_SETUP_MS + 10
    assert why_not_worth_moving(10 * MOVE_BYTES_PER_MS, move_ms + 1) is None
    assert why_not_worth_moving(10 * MOVE_BYTES_PER_MS, move_ms) == (
        f"cheaper to build again ({move_ms} ms) than to move ({move_ms} ms)"
    )


@pytest.mark.parametrize("kind", ["broadcast", "cache"])
def test_a_cheap_broadcast_or_cached_table_is_built_again(kind: str) -> None:
    taken = graph(pipeline("a", kind=kind, run_ms=5, bytes=1_000), result("r", "a"))
    assert select(taken).chosen == ()
    assert skipped(select(taken)) == {"a": "cheaper to build again (5 ms) than to move (20 ms)"}


@pytest.mark.parametrize("kind", ["broadcast", "cache"])
def test_a_costly_broadcast_or_cached_table_is_state(kind: str) -> None:
    assert chosen(select(graph(pipeline("a", kind=kind), result("r", "a")))) == "a"


def test_a_shuffle_is_state_however_cheap() -> None:
    assert chosen(select(graph(pipeline("a", run_ms=1), result("r", "a")))) == "a"


def test_building_a_broadcast_again_includes_what_cannot_be_stored_beneath_it() -> None:
    cheap = [pipeline("b", "a", run_ms=1, refusal="x"), pipeline("c", "b", kind="broadcast", run_ms=1)]
    assert chosen(select(graph(pipeline("a", refusal="x"), *cheap, result("r", "c")))) == "c"


def test_a_cheap_broadcast_over_a_stored_shuffle_is_built_again_from_it() -> None:
    cheap = pipeline("b", "a", kind="broadcast", run_ms=1)
    taken = graph(pipeline("a", stored=True), cheap, result("r", "b"))
    assert chosen(select(taken)) == "a"
    assert select(taken).bytes == 0


def test_a_small_broadcast_spares_the_large_shuffle_beneath_it() -> None:
    small = pipeline("b", "a", kind="broadcast", run_ms=1, bytes=1_000)
    assert chosen(select(graph(pipeline("a", bytes=500_000_000), small, result("r", "b")))) == "b"


def test_a_cheap_broadcast_made_by_aqe_is_built_again_as_its_shuffle_travels_anyway() -> None:
    made = pipeline("b", "a", kind="broadcast", run_ms=1, in_initial_plan=False)
    assert chosen(select(graph(pipeline("a"), made, result("r", "b")))) == "a"


def test_what_the_store_has_already_is_carried_forward_for_nothing() -> None:
    taken = graph(pipeline("a", kind="broadcast", run_ms=0, stored=True), result("r", "a"))
    assert chosen(select(taken)) == "a"
    assert select(taken).bytes == 0
    assert fates(taken, select(taken))["a"] == ("kept", "in the store already")


# Under a budget


def test_a_budget_that_everything_fits_into_changes_nothing() -> None:
    taken = papers_example(5)
    assert select(taken, budget_bytes=3_000_000) == select(taken)


def test_under_a_budget_what_saves_the_most_run_time_per_byte_is_kept() -> None:
    stages = [
        pipeline("a", bytes=90, run_ms=900),
        pipeline("b", bytes=10, run_ms=300),
        pipeline("c", bytes=10, run_ms=200),
    ]
    taken = graph(*stages, result("r", "a b c"))
    selection = select(taken, budget_bytes=95)
    assert chosen(selection) == "b c"
    assert skipped(selection) == {"a": "does not fit into 95 bytes"}
    assert fates(taken, selection)["a"] == ("lost", "does not fit into 95 bytes")


def test_where_the_topmost_does_not_fit_what_lies_beneath_it_is_kept() -> None:
    taken = graph(pipeline("a", bytes=10), pipeline("b", "a", bytes=100), result("r", "b"))
    assert chosen(select(taken, budget_bytes=50)) == "a"


def test_nothing_is_kept_beneath_what_came_in_later() -> None:
    # The small one saves more per byte and comes first; the large one covers it and still fits.
    stages = [pipeline("a", bytes=1), pipeline("b", "a", bytes=100), pipeline("c", bytes=50, run_ms=1)]
    assert chosen(select(graph(*stages, result("r", "b c")), budget_bytes=100)) == "b"


def test_the_run_time_beneath_a_stage_counts_for_it() -> None:
    over_a_costly_one = [pipeline("a", run_ms=1_000, refusal="x"), pipeline("b", "a", bytes=10, run_ms=1)]
    alone = pipeline("c", bytes=10, run_ms=500)
    assert chosen(select(graph(*over_a_costly_one, alone, result("r", "b c")), budget_bytes=10)) == "b"


def test_a_budget_of_nothing_still_carries_what_the_store_has() -> None:
    taken = graph(pipeline("a", stored=True, run_ms=0), pipeline("b"), result("r", "a b"))
    selection = select(taken, budget_bytes=0)
    assert chosen(selection) == "a"
    assert skipped(selection) == {"b": "does not fit into 0 bytes"}


# For any graph


def storable(taken: StageGraph) -> set[str]:
    """Those with no reason against them but cost."""
    return {
        each.id
        for each in taken.pipelines.values()
        if each.finished and each.fingerprint and not each.refusal and each.kind is not Kind.SUBQUERY
    }


def needed(taken: StageGraph, kept: set[str]) -> set[str]:
    """The definition, recursively: down from every unfinished pipeline, past what is not kept."""
    reached: set[str] = set()

    def need(pipeline_id: str) -> None:
        if pipeline_id in reached:
            return
        reached.add(pipeline_id)
        each = taken.pipelines[pipeline_id]
        if pipeline_id not in kept or not each.in_initial_plan:
            for dependency in each.depends_on:
                need(dependency)

    for each in taken.pipelines.values():
        if not each.finished:
            need(each.id)
    return reached


budgets = st.sampled_from([None, 0, 1_000, 1_001_000, 3_000_000, 600_000_000])


@given(random_graphs(), budgets)
def test_whatever_is_chosen_is_finished_storable_and_needed_past_no_other_chosen_one(
    taken: StageGraph, budget_bytes: int | None
) -> None:
    selection = select(taken, budget_bytes=budget_bytes)
    kept = {each.pipeline_id for each in selection.chosen}
    assert kept <= storable(taken)
    assert kept <= needed(taken, kept) | {table for each in kept for table in tables(taken, each)}


@given(random_graphs(), budgets)
def test_every_finished_pipeline_that_is_needed_and_not_chosen_is_skipped_with_a_reason(
    taken: StageGraph, budget_bytes: int | None
) -> None:
    selection = select(taken, budget_bytes=budget_bytes)
    kept = {each.pipeline_id for each in selection.chosen}
    finished = {each.id for each in taken.pipelines.values() if each.finished}
    assert set(skipped(selection)) == (needed(taken, kept) & finished) - kept
    assert all(skipped(selection).values())


@given(random_graphs())
def test_every_storable_shuffle_that_an_unfinished_pipeline_reads_is_chosen(taken: StageGraph) -> None:
    selection = select(taken)
    kept = {each.pipeline_id for each in selection.chosen}
    read = {below for each in taken.pipelines.values() if not each.finished for below in each.depends_on}
    shuffles = {each.id for each in taken.pipelines.values() if each.kind is Kind.SHUFFLE}
    again = final_plan(taken, kept) - kept
    stale = {each for each in shuffles if not all_repeatable(taken, again & beneath(taken, each))}
    unfounded = {each for each in shuffles if not tables(taken, each) <= kept}
    doubtful = {each for each in shuffles if not told_apart(taken, each)}
    assert read & shuffles & storable(taken) - stale - unfounded - doubtful <= kept


@given(random_graphs(), budgets)
def test_whatever_is_chosen_was_made_of_values_that_repeat_or_can_be_told_apart(
    taken: StageGraph, budget_bytes: int | None
) -> None:
    for each in select(taken, budget_bytes=budget_bytes).chosen:
        assert told_apart(taken, each.pipeline_id)


def told_apart(taken: StageGraph, pipeline_id: str) -> bool:
    """Whether all values that do not repeat, here and beneath, have a fingerprint that nobody else has.
    Cached tables are shared, and hide what they were made of."""
    top = taken.pipelines[pipeline_id]
    if top.repeatable or top.stored:
        return True
    shared = [each.fingerprint for each in taken.pipelines.values() if each.is_of_one_query]

    def unsure(each: Pipeline) -> bool:
        if each.repeatable or each.kind is Kind.CACHE:
            return False
        return each.fingerprint is None or (not each.stored and shared.count(each.fingerprint) > 1)

    below, seen = list(top.depends_on), set[str]()
    while below:
        each = taken.pipelines[below.pop()]
        if each.id not in seen:
            seen.add(each.id)
            below += [] if each.kind is Kind.CACHE else each.depends_on
    kinds = [Kind.CACHE] if top.kind is Kind.CACHE else list(Kind)
    made_of = [taken.pipelines[each] for each in seen if taken.pipelines[each].kind in kinds]
    return not any(unsure(each) for each in [top, *made_of])


@given(random_graphs(), budgets, st.randoms(use_true_random=False))
def test_the_order_in_which_the_jvm_lists_pipelines_does_not_matter(
    taken: StageGraph, budget_bytes: int | None, order: random.Random
) -> None:
    shuffled = [
        replace(each, pipelines=tuple(order.sample(each.pipelines, len(each.pipelines))))
        for each in taken.queries
    ]
    order.shuffle(shuffled)
    again = replace(taken, queries=tuple(shuffled))
    assert select(again, budget_bytes=budget_bytes) == select(taken, budget_bytes=budget_bytes)
    assert kept_and_lost(again, select(again)) == kept_and_lost(taken, select(taken))


@given(random_graphs(), budgets)
def test_nothing_is_kept_that_was_made_of_values_which_another_run_gives_otherwise(
    taken: StageGraph, budget_bytes: int | None
) -> None:
    selection = select(taken, budget_bytes=budget_bytes)
    kept = {each.pipeline_id for each in selection.chosen}
    again = final_plan(taken, kept) - kept
    assert all(all_repeatable(taken, again & beneath(taken, each)) for each in kept)


@given(random_graphs(), budgets)
def test_nothing_is_kept_without_the_tables_that_it_was_made_of(
    taken: StageGraph, budget_bytes: int | None
) -> None:
    selection = select(taken, budget_bytes=budget_bytes)
    kept = {each.pipeline_id for each in selection.chosen}
    assert all(tables(taken, each) <= kept for each in kept)


def tables(taken: StageGraph, pipeline_id: str) -> set[str]:
    below = [taken.pipelines[each] for each in beneath(taken, pipeline_id)]
    return {each.id for each in below if each.kind is Kind.CACHE and not each.repeatable}


def beneath(taken: StageGraph, pipeline_id: str) -> set[str]:
    found, below = set[str](), [*taken.pipelines[pipeline_id].depends_on]
    while below:
        found.add(each := below.pop())
        below.extend(taken.pipelines[each].depends_on)
    return found


def all_repeatable(taken: StageGraph, pipeline_ids: set[str]) -> bool:
    return all(taken.pipelines[each].repeatable for each in pipeline_ids)


@given(random_graphs(), budgets)
def test_every_finished_pipeline_is_kept_covered_or_lost(taken: StageGraph, budget_bytes: int | None) -> None:
    selection = select(taken, budget_bytes=budget_bytes)
    fate = fates(taken, selection)
    assert set(fate) == {each.id for each in taken.pipelines.values() if each.finished}
    assert [each for each, (outcome, _) in fate.items() if outcome == "kept"] == chosen(selection).split()
    assert {each for each, (outcome, _) in fate.items() if outcome == "lost"} == set(skipped(selection))


@given(random_graphs(), st.sampled_from([0, 1_000, 1_001_000, 3_000_000, 600_000_000]))
def test_a_budget_is_kept_and_nothing_that_saves_run_time_and_fits_is_left(
    taken: StageGraph, budget_bytes: int
) -> None:
    selection = select(taken, budget_bytes=budget_bytes)
    assert selection.bytes <= budget_bytes
    kept = {each.pipeline_id for each in selection.chosen}
    for each, reason in skipped(selection).items():
        if reason.startswith("does not fit") and taken.pipelines[each].run_ms > 0:
            together = modify_plan(taken, kept | {each})
            assert taken.bytes_of(one for one in together if not taken.pipelines[one].stored) > budget_bytes


@given(random_graphs())
def test_algorithm_6_6_extracts_a_part_of_what_algorithm_6_5_selects_and_misses_nothing(
    taken: StageGraph,
) -> None:
    finished = {each.id for each in taken.pipelines.values() if each.finished}
    state_operators = select_state_operators(taken, finished)
    extracted = modify_plan(taken, state_operators)
    assert extracted == needed(taken, finished) & finished
    assert extracted <= state_operators <= finished
