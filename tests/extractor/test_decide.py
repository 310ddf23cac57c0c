from dataclasses import replace
from typing import Any

from godwit.extractor import decide
from godwit.extractor.facade import Written
from godwit.extractor.manifest import Fragment
from godwit.planrewrite.select import select
from godwit.planrewrite.stagegraph import Kind, StageGraph
from tests.extractor.samples import FRAGMENT
from tests.planrewrite.graphs import graph, pipeline, result


def fragment(taken: StageGraph, name: str, **loaded: Fragment) -> Fragment:
    pipeline = taken.pipelines[name]
    written = Written(name, f"f{name}", pipeline.kind, "label", 1, None, "q", "f0", b"")
    return decide.fragment(written, "blocks/1-a", taken, loaded)


def chain(**facts: Any) -> StageGraph:
    """`b` is made of `a`."""
    return graph(pipeline("a", **facts), pipeline("b", "a"), result("r", "b"))


def test_what_is_made_of_values_that_do_not_repeat_is_for_its_own_query() -> None:
    assert fragment(chain(repeatable=False), "b").query == "q"
    assert fragment(chain(), "b").query is None


def test_the_values_themselves_are_for_all() -> None:
    """Whoever reads them has these, and nobody makes others beside them."""
    assert fragment(chain(repeatable=False), "a").query is None


def test_a_cached_table_is_for_all_and_named_by_what_was_made_of_it() -> None:
    taken = graph(
        pipeline("a", repeatable=False),
        pipeline("t", "a", kind="cache", repeatable=False),
        pipeline("b", "t"),
        result("r", "b"),
    )
    assert fragment(taken, "t").query is None
    assert fragment(taken, "b").stands_on == ("ft",)


def test_what_stood_on_a_table_before_a_move_stands_on_it_after() -> None:
    """The next driver reads `a` from the store, and does not see what is beneath it."""
    before = replace(FRAGMENT, fingerprint="fa", stands_on=("ft",))
    taken = chain(repeatable=False, stored=True)
    assert fragment(taken, "b", fa=before).stands_on == ("ft",)


def kept(taken: StageGraph, *loaded: Fragment, bad: frozenset[str] = frozenset()) -> set[str]:
    at_hand = {each.fingerprint: each for each in loaded}
    return {each.fingerprint for each in decide.kept(taken, select(taken), {}, at_hand, bad)}


TABLE = replace(FRAGMENT, fingerprint="ft", kind=Kind.CACHE)
MAXIMUM = replace(FRAGMENT, fingerprint="fm", stands_on=("ft",))


def test_a_table_is_kept_as_long_as_anything_that_stands_on_it() -> None:
    behind = graph(pipeline("t", kind="cache", stored=True), pipeline("x", "t"), result("r"))
    assert kept(behind, TABLE, MAXIMUM) == {"fm", "ft"}
    assert kept(behind, TABLE) == set()


def test_what_stands_on_a_table_that_was_lost_is_not_kept() -> None:
    assert kept(graph(result("r")), TABLE, MAXIMUM, bad=frozenset({"ft"})) == set()
