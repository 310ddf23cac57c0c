"""How shuffled bytes are written: settings of the SparkContext, hence a context for each."""

from collections.abc import Mapping

from tests.spark.features.feature import Feature, sql_feature

TEXT = """
SELECT /*+ MERGE(g) */ d.label, f.name, count(*) AS n, sum(f.amount), max(f.price), count(DISTINCT f.k)
FROM facts f JOIN dims d ON f.k = d.k JOIN facts g ON f.id = g.id AND g.grp > 3
GROUP BY d.label, f.name
"""


def shuffle_feature(name: str, context_conf: Mapping[str, str]) -> Feature:
    return sql_feature(
        name,
        TEXT,
        r"BroadcastHashJoin",
        r"SortMergeJoin",
        r"Exchange hashpartitioning",
        context_conf=context_conf,
    )


FEATURES = [
    shuffle_feature("encrypted shuffle", {"spark.io.encryption.enabled": "true"}),
    shuffle_feature("Kryo", {"spark.serializer": "org.apache.spark.serializer.KryoSerializer"}),
    shuffle_feature("lz4", {"spark.io.compression.codec": "lz4"}),
    shuffle_feature("zstd", {"spark.io.compression.codec": "zstd"}),
    shuffle_feature("snappy", {"spark.io.compression.codec": "snappy"}),
    shuffle_feature("uncompressed shuffle", {"spark.shuffle.compress": "false"}),
]
