"""Queries that nobody thought of, moved at a random point, with running stages awaited or left."""

import random
from pathlib import Path

import pytest

from tests.spark.questions import RandomQuestion
from tests.spark.rig import Proof, Rig

SEEDS = range(25)


@pytest.fixture(scope="module")
def proofs(rig: Rig, small_tables: Path) -> list[Proof]:
    return [rig.prove_once(RandomQuestion(seed, small_tables), random.Random(seed)) for seed in SEEDS]


def test_a_random_query_moved_at_a_random_point_gives_its_rows(proofs: list[Proof]) -> None:
    assert [wrong for proof in proofs for wrong in proof.wrong] == []


def test_most_of_those_that_are_moved_go_on_from_the_store(proofs: list[Proof]) -> None:
    points = [point for proof in proofs for point in proof.points]
    assert len(points) >= 0.8 * len(SEEDS)
    assert sum(point.used > 0 for point in points) >= 0.6 * len(points)
