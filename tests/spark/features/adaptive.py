"""What Spark decides while a query runs, and the layouts that a program asks for."""

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from tests.spark.features.feature import Feature, sql_feature
from tests.spark.features.joins import NO_BROADCAST
from tests.spark.features.tables import open_tables

SMALL_PARTITIONS = {
    "spark.sql.adaptive.advisoryPartitionSizeInBytes": "16k",
    "spark.sql.adaptive.coalescePartitions.minPartitionSize": "1k",
}
SKEW = {
    "spark.sql.adaptive.skewJoin.skewedPartitionThresholdInBytes": "20k",
    "spark.sql.adaptive.skewJoin.skewedPartitionFactor": "1.5",
}
FULL_BY_MONTH = "SELECT m.month, count(*), sum(m.id) FROM by_month m JOIN bands b ON m.month = b.band"


def aggregate_of_cached_aggregate(spark: SparkSession, folder: Path) -> DataFrame:
    open_tables(spark, folder)
    cached = spark.sql(
        "SELECT k, grp, sum(amount) AS total, count(*) AS n FROM facts GROUP BY k, grp"
    ).cache()
    return cached.where("n > 1").groupBy("grp").agg(sf.sum("total"), sf.sum("k"))


def join_of_cached_tables(spark: SparkSession, folder: Path) -> DataFrame:
    open_tables(spark, folder)
    dims = spark.table("dims").where("k is not null").cache()
    facts = spark.table("facts").select("id", "k", "name").repartition(4, "k").cache()
    return facts.join(dims, "k").groupBy("label").agg(sf.count("*"), sf.sum("id"))


def facts(spark: SparkSession, folder: Path) -> DataFrame:
    open_tables(spark, folder)
    return spark.table("facts").select("id", "k", "grp", "amount", "name")


def summed(frame: DataFrame) -> DataFrame:
    return frame.groupBy("grp").agg(sf.count("*"), sf.sum("id"), sf.sum("amount"))


FEATURES = [
    sql_feature(
        "dynamic partition pruning by a reused broadcast",
        f"{FULL_BY_MONTH} AND b.low > 500 GROUP BY m.month",
        r"dynamicpruningexpression\(month#\d+ IN dynamicpruning#\d+\)",
        r"SubqueryBroadcast dynamicpruning",
    ),
    sql_feature(
        "dynamic partition pruning by a subquery",
        f"{FULL_BY_MONTH} AND b.low > 500 GROUP BY m.month",
        r"dynamicpruningexpression\(month#\d+ IN (dynamicpruning|subquery)#\d+\)",
        r"SortMergeJoin",
        conf={
            **NO_BROADCAST,
            "spark.sql.optimizer.dynamicPartitionPruning.reuseBroadcastOnly": "false",
            "spark.sql.optimizer.dynamicPartitionPruning.fallbackFilterRatio": "100",
        },
    ),
    sql_feature(
        "runtime bloom filter",
        """SELECT d.label, count(*), sum(f.id) FROM facts f JOIN dims d ON f.k = d.k WHERE d.grp = 7
        GROUP BY d.label""",
        r"might_contain\(",
        r"bloom_filter_agg",
        conf={
            **NO_BROADCAST,
            "spark.sql.optimizer.runtime.bloomFilter.enabled": "true",
            "spark.sql.optimizer.runtime.bloomFilter.applicationSideScanSizeThreshold": "1b",
        },
    ),
    sql_feature(
        "skewed partition split for a join",
        """SELECT d.label, count(*), sum(f.id) FROM facts f JOIN dims d ON f.hot = d.long_k
        GROUP BY d.label""",
        r"SortMergeJoin\(skew=true\)",
        r"AQEShuffleRead .*skewed",
        conf={**NO_BROADCAST, **SMALL_PARTITIONS, **SKEW},
    ),
    sql_feature(
        "skewed partition split for a left join",
        """SELECT f.id, d.label FROM facts f LEFT JOIN dims d ON f.hot = d.long_k AND d.grp > 3
        WHERE f.id % 3 = 0""",
        r"SortMergeJoin\(skew=true\)",
        conf={**NO_BROADCAST, **SMALL_PARTITIONS, **SKEW},
    ),
    sql_feature(
        "coalesced partitions",
        "SELECT k, count(*), sum(id) FROM facts GROUP BY k",
        r"AQEShuffleRead coalesced",
        conf={"spark.sql.shuffle.partitions": "40"},
    ),
    sql_feature(
        "join that becomes a broadcast join at run time",
        """SELECT f.grp, count(*), sum(f.id) FROM facts f JOIN (SELECT k, count(*) AS n FROM facts
        WHERE amount < 50 GROUP BY k) t ON f.k = t.k GROUP BY f.grp""",
        r"(?s)BroadcastHashJoin.*AQEShuffleRead local",
        initial_plan_contains=("SortMergeJoin",),
        conf={**NO_BROADCAST, "spark.sql.adaptive.autoBroadcastJoinThreshold": "10m"},
    ),
    sql_feature(
        "join that becomes a hash join at run time",
        "SELECT f.grp, count(*), sum(d.weight) FROM facts f JOIN dims d ON f.k = d.k GROUP BY f.grp",
        r"ShuffledHashJoin",
        initial_plan_contains=("SortMergeJoin",),
        conf={**NO_BROADCAST, "spark.sql.adaptive.maxShuffledHashJoinLocalMapThreshold": "64m"},
    ),
    sql_feature(
        "relation that proves empty at run time",
        """SELECT f.grp, count(*), sum(t.n) FROM facts f JOIN (SELECT k, count(*) AS n FROM facts
        WHERE amount < -1 GROUP BY k) t ON f.k = t.k GROUP BY f.grp
        UNION ALL SELECT grp, count(*), sum(id) FROM dims JOIN facts USING (grp) GROUP BY grp""",
        r"(?s)\A((?!SortMergeJoin \[k).)*\Z",
        initial_plan_contains=(r"SortMergeJoin \[k",),
        conf=NO_BROADCAST,
    ),
    Feature(
        "cached aggregate", aggregate_of_cached_aggregate, (r"TableCacheQueryStage", r"InMemoryTableScan")
    ),
    Feature(
        "cached tables joined",
        join_of_cached_tables,
        (r"(?s)TableCacheQueryStage.*TableCacheQueryStage", r"InMemoryTableScan"),
    ),
    Feature(
        "repartition by hash",
        lambda spark, folder: summed(facts(spark, folder).repartition(5, "k")),
        (r"Exchange hashpartitioning\(k#\d+, 5\), REPARTITION_BY_NUM",),
    ),
    Feature(
        "repartition by range",
        lambda spark, folder: summed(
            facts(spark, folder).repartitionByRange(6, "amount", sf.col("id").desc())
        ),
        (r"Exchange rangepartitioning\(amount#\d+ ASC NULLS FIRST, id#\d+L DESC NULLS LAST, 6\)",),
    ),
    Feature(
        "repartition round robin",
        lambda spark, folder: summed(facts(spark, folder).repartition(7)),
        (r"Exchange RoundRobinPartitioning\(7\)",),
    ),
    sql_feature(
        "rebalance",
        "SELECT /*+ REBALANCE(hot) */ id, hot, amount FROM facts WHERE id % 2 = 0",
        r"REBALANCE_PARTITIONS_BY_COL",
        r"AQEShuffleRead .*skewed",
        conf=SMALL_PARTITIONS,
    ),
    Feature(
        "sort within partitions",
        lambda spark, folder: summed(facts(spark, folder).repartition(3, "grp").sortWithinPartitions("id")),
        (r"Exchange hashpartitioning\(grp#\d+, 3\)",),
    ),
]
