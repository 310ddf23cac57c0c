"""Queries that nobody thought of.

A seed is a program over the small tables: a source and a few random steps, of which joins and set operations
bring in further random relations. The same seed gives the same query in any process, and every query has one
right answer as a multiset of rows:
- what depends on an order has a total one, over all columns, so that ties are identical rows;
- doubles are multiples of 1/4 and are only added, compared and counted, so that sums are exact in any order;
- the other side of a join is grouped by its key, so that rows do not multiply.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as sf

from tests.spark.features.tables import open_tables
from tests.spark.randomexpressions import MODULUS, aggregate, condition, integer, value
from tests.tpc.compare import UNORDERED, Order

MOST_COLUMNS = 7
JOIN_KINDS = ("inner", "left", "right", "full", "leftsemi", "leftanti")
HINTS = (None, None, "broadcast", "merge", "shuffle_hash")


@dataclass(frozen=True)
class RandomQuery:
    frame: DataFrame
    order: Order
    steps: tuple[str, ...]


def random_query(spark: SparkSession, folder: Path, seed: int) -> RandomQuery:
    """The query of this seed. It may cache relations: `spark.catalog.clearCache()` afterwards."""
    open_tables(spark, folder)
    generator = Generator(spark, random.Random(seed))
    frame = generator.relation(other_relations=generator.chosen.randint(1, 2))
    order = UNORDERED
    # A last shuffle to stop at, unless a limit has left a single partition.
    end = generator.chosen.choice(["group", "group", "order", "group and order"])
    if "group" in end:
        frame = generator.grouped(frame)
    if "order" in end:
        frame = frame.orderBy(*frame.columns)
        order = Order(tuple(range(len(frame.columns))))
        generator.steps.append("order")
    return RandomQuery(frame, order, tuple(generator.steps))


def random_conf(seed: int) -> dict[str, str]:
    """What to set in the session before the query of this seed is built."""
    chosen = random.Random(f"conf {seed}")
    conf = {"spark.sql.shuffle.partitions": chosen.choice(["2", "5", "16"])}
    if chosen.random() < 0.4:
        conf["spark.sql.autoBroadcastJoinThreshold"] = "-1"
    if chosen.random() < 0.3:
        conf["spark.sql.adaptive.advisoryPartitionSizeInBytes"] = "16k"
    return conf


class Generator:
    def __init__(self, spark: SparkSession, chosen: random.Random) -> None:
        self.spark = spark
        self.chosen = chosen
        self.steps: list[str] = []
        self.names = 0

    def relation(self, other_relations: int) -> DataFrame:
        frame = self.source()
        steps: dict[Callable[[DataFrame], DataFrame], int] = {
            self.filtered: 3,
            self.projected: 6,
            self.grouped: 4,
            self.distinct: 2,
            self.windowed: 3,
            self.cut: 3,
            self.laid_out: 4,
            self.exploded: 2,
            self.compared: 2,
            self.looked_up: 2,
            self.with_python: 1,
            self.cached: 1,
        }
        for _ in range(self.chosen.randint(2, 5)):
            if other_relations and self.chance(0.4):
                other_relations -= 1
                both = self.chosen.choice([self.joined, self.joined, self.combined])
                frame = both(frame, self.relation(other_relations=0))
            else:
                (step,) = self.chosen.choices(list(steps), list(steps.values()))
                frame = step(frame)
            frame = self.narrowed(frame)
        return frame

    def source(self) -> DataFrame:
        table, columns = self.chosen.choice(
            [
                ("facts", ["id", "k", "grp", "name", "amount", "price", "day"]),
                ("facts", ["id", "k", "hot", "name", "quarter"]),
                ("facts", ["k", "grp", "day", "at"]),
                ("dims", ["k", "grp", "name", "label", "weight"]),
                ("by_month", ["id", "k", "month"]),
            ]
        )
        self.steps.append(table)
        frame = self.spark.table(table).select(*[sf.col(name).alias(self.name()) for name in columns])
        return frame.where(sf.col(integer(self.chosen, frame)) % 3 == self.chosen.randrange(3))

    # One relation in, one out.

    def filtered(self, frame: DataFrame) -> DataFrame:
        self.steps.append("filter")
        return frame.where(condition(self.chosen, frame))

    def projected(self, frame: DataFrame) -> DataFrame:
        self.steps.append("project")
        return frame.withColumn(self.name(), value(self.chosen, frame))

    def grouped(self, frame: DataFrame) -> DataFrame:
        keys = self.chosen.sample(frame.columns, min(len(frame.columns), self.chosen.randint(1, 2)))
        how = self.chosen.choice(["groupBy", "groupBy", "groupBy", "rollup", "cube"])
        self.steps.append(how)
        groups = getattr(frame, how)(*[sf.col(key).alias(self.name()) for key in keys])
        counted: DataFrame = groups.agg(sf.count("*").alias(self.name()), *self.aggregates(frame))
        return counted

    def distinct(self, frame: DataFrame) -> DataFrame:
        self.steps.append("distinct")
        return frame.distinct()

    def windowed(self, frame: DataFrame) -> DataFrame:
        self.steps.append("window")
        groups = Window.partitionBy(self.chosen.choice(frame.columns))
        number = sf.col(integer(self.chosen, frame))
        in_order = groups.orderBy(*frame.columns)
        name = self.name()
        function = self.chosen.choice(
            [
                sf.row_number().over(in_order),
                sf.rank().over(in_order),
                sf.lag(number, 2).over(in_order),
                sf.sum(number).over(in_order.rowsBetween(-2, 0)),
                sf.max(number).over(groups),
                sf.count("*").over(groups),
            ]
        )
        numbered = frame.withColumn(name, function)
        return numbered.where(sf.col(name) <= self.chosen.randint(1, 9)) if self.chance(0.4) else numbered

    def cut(self, frame: DataFrame) -> DataFrame:
        self.steps.append("limit")
        ordered = frame.orderBy(*[self.direction(sf.col(name)) for name in frame.columns])
        return ordered.offset(self.chosen.randrange(3)).limit(self.chosen.randint(50, 3000))

    def laid_out(self, frame: DataFrame) -> DataFrame:
        column, partitions = self.chosen.choice(frame.columns), self.chosen.randint(2, 9)
        how = self.chosen.choice(["hash", "range", "round robin", "rebalance", "coalesce", "sort"])
        self.steps.append(f"layout {how}")
        match how:
            case "hash":
                return frame.repartition(partitions, column)
            case "range":
                return frame.repartitionByRange(partitions, column)
            case "round robin":
                return frame.repartition(partitions)
            case "rebalance":
                return frame.hint("rebalance", column)
            case "coalesce":
                return frame.coalesce(partitions)
            case _:
                return frame.sortWithinPartitions(column)

    def exploded(self, frame: DataFrame) -> DataFrame:
        self.steps.append("explode")
        first, second = (sf.col(integer(self.chosen, frame)).cast("bigint") for _ in range(2))
        explode = self.chosen.choice([sf.explode, sf.explode_outer])
        return frame.withColumn(
            self.name(), explode(sf.filter(sf.array(first, second), lambda one: one % 2 == 0))
        )

    def compared(self, frame: DataFrame) -> DataFrame:
        self.steps.append("scalar subquery")
        number = sf.col(integer(self.chosen, frame))
        other = self.spark.table("facts").where(sf.col("grp") == self.chosen.randrange(23))
        return frame.where(number % 211 < other.agg(sf.avg("k").cast("int")).scalar())

    def looked_up(self, frame: DataFrame) -> DataFrame:
        self.steps.append("exists")
        other = self.spark.table("dims").where(sf.col("weight") > self.chosen.randrange(100))
        found = other.where(sf.col("k") == sf.col(integer(self.chosen, frame)).outer() % 200).exists()
        return frame.where(found if self.chance(0.5) else ~found)

    def with_python(self, frame: DataFrame) -> DataFrame:
        self.steps.append("python")
        step = self.chosen.randrange(1, 50)
        stepped = sf.udf(lambda number: None if number is None else (number + step) % 97, "bigint")
        return frame.withColumn(self.name(), stepped(sf.col(integer(self.chosen, frame))))

    def cached(self, frame: DataFrame) -> DataFrame:
        self.steps.append("cache")
        return frame.cache()

    # Two relations in, one out.

    def joined(self, left: DataFrame, right: DataFrame) -> DataFrame:
        kind, hint = self.chosen.choice(JOIN_KINDS), self.chosen.choice(HINTS)
        other = self.chosen.choice([right, right, left])
        self.steps.append(f"{kind} join {hint or ''}{' with itself' if other is left else ''}")
        key, unique = self.name(), integer(self.chosen, other)
        keys = other.groupBy((sf.col(unique) % MODULUS).alias(key))
        one_per_key = keys.agg(sf.count("*").alias(self.name()), *self.aggregates(other))
        hinted = one_per_key.hint(hint) if hint else one_per_key
        on = sf.col(integer(self.chosen, left)) % MODULUS == sf.col(key)
        return left.join(hinted, on, kind)

    def combined(self, left: DataFrame, right: DataFrame) -> DataFrame:
        how = self.chosen.choice(["unionAll", "union", "intersect", "intersectAll", "subtract", "exceptAll"])
        self.steps.append(how)
        width = self.chosen.randint(1, 2)
        one, other = self.integers(left, width), self.integers(right, width)
        match how:
            case "union":
                return one.unionAll(other).distinct()
            case _:
                combined: DataFrame = getattr(one, how)(other)
                return combined

    # Parts.

    def aggregates(self, frame: DataFrame) -> list[Column]:
        names = self.chosen.sample(frame.columns, min(len(frame.columns), self.chosen.randint(0, 3)))
        return [aggregate(self.chosen, frame, name).alias(self.name()) for name in names]

    def integers(self, frame: DataFrame, width: int) -> DataFrame:
        columns = [sf.col(integer(self.chosen, frame)).cast("bigint") % 101 for _ in range(width)]
        return frame.select(*[column.alias(self.name()) for column in columns])

    def narrowed(self, frame: DataFrame) -> DataFrame:
        """Not too many columns, and always an integer among them."""
        kept = {
            integer(self.chosen, frame),
            *self.chosen.sample(frame.columns, min(len(frame.columns), MOST_COLUMNS)),
        }
        return frame.select(*[name for name in frame.columns if name in kept])

    def direction(self, column: Column) -> Column:
        return self.chosen.choice([column.asc(), column.desc(), column.asc_nulls_last()])

    def chance(self, probability: float) -> bool:
        return self.chosen.random() < probability

    def name(self) -> str:
        self.names += 1
        return f"c{self.names}"
