"""Seeded bugs are found by their place in the sources: one that has lost its place would seed nothing."""

import pytest

from tests.spark.mutants import BUGS, ROOT, Bug


@pytest.mark.parametrize("bug", BUGS.values(), ids=list(BUGS))
def test_every_bug_has_one_place_in_the_sources(bug: Bug) -> None:
    text = (ROOT / "planrewrite" / "scala" / bug.file).read_text()
    assert text.count(bug.right) == 1
    assert bug.wrong != bug.right
