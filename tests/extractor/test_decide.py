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
    written = Written(name, f"f{name}", pipeline.kind, "label", 1, None, "f0", b"")
    return decide.fragment(written, "blocks/1-a", taken, loaded)


def chain(**facts: Any) -> StageGraph:
    """`b` is made of `a`."""
    return graph(pipeline("a", **facts), pipeline("b", "a"), result("r", "b"))


def test_what_is_made_of_values_that_do_not_repeat_names_them() -> None:
    assert fragment(chain(repeatable=False), "b").made_of == ("fa",)
    assert fragment(chain(), "b").made_of == ()


def test_values_that_do_not_repeat_are_made_of_nothing_else() -> None:
    assert fragment(chain(repeatable=False), "a").made_of == ()


def test_what_was_made_of_stored_values_is_made_of_what_these_were_made_of() -> None:
    """The next driver reads `a` from the store, and does not see what is beneath it."""
    before = replace(FRAGMENT, fingerprint="fa", made_of=("f0", "ft"), stands_on=("ft",))
    made = fragment(chain(repeatable=False, stored=True), "b", fa=before)
    assert (made.made_of, made.stands_on) == (("f0", "fa", "ft"), ("ft",))


def table_over(sums: str, *above: str) -> StageGraph:
    """Tables, each made of the one before, the first of sums, and a question about the last."""
    tables = [
        pipeline(name, beneath, kind="cache", repeatable=False)
        for beneath, name in zip((sums, *above[:-1]), above, strict=True)
    ]
    asked = pipeline("b", above[-1], repeatable=False)
    return graph(pipeline(sums, repeatable=False), *tables, asked, result("r", "b"))


def test_a_cached_table_is_named_by_what_was_made_of_it_and_what_it_was_made_of_is_not() -> None:
    taken = table_over("a", "t")
    assert fragment(taken, "t").made_of == ()
    made = fragment(taken, "b")
    assert (made.made_of, made.stands_on) == (("ft",), ("ft",))


def test_a_cached_table_of_another_names_it() -> None:
    taken = table_over("a", "t", "u")
    assert fragment(taken, "u").stands_on == ("ft",)
    assert fragment(taken, "b").stands_on == ("fu",)


def kept(
    taken: StageGraph, *loaded: Fragment, bad: frozenset[str] = frozenset(), written: str = ""
) -> set[str]:
    at_hand = {each.fingerprint: each for each in loaded}
    new = {each: replace(FRAGMENT, fingerprint=each) for each in written.split()}
    return {each.fingerprint for each in decide.kept(taken, select(taken), new, at_hand, bad)}


TABLE = replace(FRAGMENT, fingerprint="ft", kind=Kind.CACHE)
MAXIMUM = replace(FRAGMENT, fingerprint="fm", made_of=("ft",), stands_on=("ft",))


def test_a_table_is_kept_as_long_as_anything_that_stands_on_it() -> None:
    behind = graph(pipeline("t", kind="cache", stored=True), pipeline("x", "t"), result("r"))
    assert kept(behind, TABLE, MAXIMUM) == {"fm", "ft"}
    assert kept(behind, TABLE) == set()


def test_what_stands_on_a_table_that_was_lost_is_not_kept() -> None:
    assert kept(graph(result("r")), TABLE, MAXIMUM, bad=frozenset({"ft"})) == set()
    read = graph(pipeline("m", stored=True, repeatable=False), result("r", "m"))
    assert kept(read, TABLE, MAXIMUM) == {"fm", "ft"}
    assert kept(read, TABLE, MAXIMUM, bad=frozenset({"ft"})) == set()


def test_what_stands_on_something_unsound_is_not_sound() -> None:
    above = replace(FRAGMENT, fingerprint="fu", stands_on=("ft",))
    topmost = replace(FRAGMENT, fingerprint="fq", stands_on=("fu",))
    assert decide.sound([topmost, above, TABLE]) == (topmost, above, TABLE)
    assert decide.sound([topmost, above]) == ()


SUMS = replace(FRAGMENT, fingerprint="fa")
LARGEST = replace(FRAGMENT, fingerprint="fl", made_of=("fa",))


def test_sums_are_kept_with_what_was_made_of_them_by_every_later_move() -> None:
    """The running query has no use for them any more, but the one that reads their maximum may."""
    covered = graph(pipeline("a", stored=True, repeatable=False), pipeline("b", "a"), result("r", "b"))
    assert kept(covered, SUMS, LARGEST, written="fb") == {"fa", "fb", "fl"}


def test_what_was_made_of_another_edition_than_the_one_that_is_stored_now_is_not_kept() -> None:
    again = graph(pipeline("a", repeatable=False), result("r", "a"))
    assert kept(again, LARGEST, written="fa") == {"fa"}
    used = graph(
        pipeline("a", repeatable=False), pipeline("l", stored=True, repeatable=False), result("r", "a l")
    )
    assert kept(used, LARGEST, written="fa") == {"fa"}
