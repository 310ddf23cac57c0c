"""Each thing that Spark can do, seen in the plan, and then moved at every point."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.spark.features import FEATURES, Feature
from tests.spark.questions import FeatureQuestion
from tests.spark.rig import Proof, Rig

OF_A_SESSION = [feature for feature in FEATURES.values() if not feature.context_conf]
OF_A_CONTEXT = [feature for feature in FEATURES.values() if feature.context_conf]


@pytest.fixture
def reshaped(rig: Rig) -> Iterator[Rig]:
    yield rig
    rig.shape({})


@pytest.mark.parametrize("feature", OF_A_SESSION, ids=lambda feature: feature.name)
def test_a_query_with_this_feature_can_be_moved(rig: Rig, small_tables: Path, feature: Feature) -> None:
    assert_right(rig.prove(FeatureQuestion(feature.name, small_tables)), feature)


@pytest.mark.parametrize("feature", OF_A_CONTEXT, ids=lambda feature: feature.name)
def test_shuffled_bytes_of_any_form_can_be_moved(reshaped: Rig, small_tables: Path, feature: Feature) -> None:
    reshaped.shape(feature.context_conf)
    proof = reshaped.prove(FeatureQuestion(feature.name, small_tables))
    assert_right(proof, feature)


def assert_right(proof: Proof, feature: Feature) -> None:
    assert feature.missing_in(proof.plan) == [], proof.plan.final
    assert proof.answer.rows, "no rows prove nothing"
    assert proof.points, "the query was never stopped"
    assert proof.wrong == []
    if not feature.missed_because:
        assert proof.missed == []
        assert any(point.used for point in proof.points) != feature.never_kept
