"""Queries that nobody thought of, moved at a random point, with running stages awaited or left."""

import random
from pathlib import Path

import pytest

from tests.spark.questions import RandomQuestion
from tests.spark.rig import Rig

SEEDS = range(25)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_query_moved_at_a_random_point_gives_its_rows(
    rig: Rig, small_tables: Path, seed: int
) -> None:
    proof = rig.prove_once(RandomQuestion(seed, small_tables), random.Random(seed))
    assert proof.wrong == []
