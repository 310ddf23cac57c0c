"""The features by name; each can be built in any process over the same tables."""

from tests.spark.features import adaptive, joins, python_udfs, relational, shuffles, types
from tests.spark.features.feature import Feature, Plan
from tests.spark.features.tables import write_tables

__all__ = ["FEATURES", "Feature", "Plan", "write_tables"]

FEATURES: dict[str, Feature] = {
    feature.name: feature
    for room in (joins, relational, adaptive, types, python_udfs, shuffles)
    for feature in room.FEATURES
}
