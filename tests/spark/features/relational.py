"""Aggregates, windows, sorts, set operations and subqueries."""

from tests.spark.features.feature import sql_feature
from tests.spark.features.joins import NO_BROADCAST
from tests.tpc.compare import Order

FEATURES = [
    sql_feature(
        "hash aggregate",
        """SELECT k, count(*), count(name), sum(amount), avg(amount), min(day), max(price), stddev(price)
        FROM facts GROUP BY k""",
        r"HashAggregate\(keys=\[k",
    ),
    sql_feature(
        "sort aggregate", "SELECT k, max(name), min(name) FROM facts GROUP BY k", r"SortAggregate\(key=\[k"
    ),
    sql_feature(
        "object hash aggregate",
        """SELECT k, array_sort(collect_set(name)), percentile(price, 0.5), approx_count_distinct(id)
        FROM facts GROUP BY k""",
        r"ObjectHashAggregate\(keys=\[k",
    ),
    sql_feature(
        "distinct aggregate",
        "SELECT grp, count(DISTINCT name), sum(amount) FROM facts GROUP BY grp",
        r"count\(distinct name",
    ),
    sql_feature(
        "several distinct aggregates",
        """SELECT grp, count(DISTINCT name), sum(DISTINCT k), count(DISTINCT day, k), sum(id)
        FROM facts GROUP BY grp""",
        r"Expand \[",
        missed_because="Spark numbers the groups of distinct columns by hashes of expression ids",
    ),
    sql_feature(
        "distinct rows", "SELECT DISTINCT k, name FROM facts", r"HashAggregate\(keys=\[k#\d+, name#\d+\]"
    ),
    sql_feature(
        "filtered aggregate",
        """SELECT grp, sum(id) FILTER (WHERE k > 100), count(*) FILTER (WHERE name IS NULL)
        FROM facts GROUP BY grp""",
        r"partial_sum\(id#\d+L\) FILTER \(WHERE",
    ),
    sql_feature(
        "cube",
        """SELECT grp, name, month(day), sum(amount), grouping_id() FROM facts
        GROUP BY CUBE(grp, name, month(day))""",
        r"Expand \[",
        r"spark_grouping_id",
    ),
    sql_feature(
        "rollup",
        "SELECT grp, k, count(*), sum(price) FROM facts GROUP BY ROLLUP(grp, k)",
        r"Expand \[",
        r"spark_grouping_id",
    ),
    sql_feature(
        "global aggregate",
        "SELECT count(*), sum(id), min(day), max(at), avg(price) FROM facts WHERE grp < 20",
        r"Exchange SinglePartition",
    ),
    sql_feature(
        "window",
        """SELECT id, row_number() OVER w, lag(id, 2) OVER w, sum(amount) OVER w,
        count(*) OVER (PARTITION BY grp ORDER BY price RANGE BETWEEN 5 PRECEDING AND 5 FOLLOWING)
        FROM facts WHERE id % 7 = 0 WINDOW w AS (PARTITION BY k ORDER BY price, id)""",
        r"Window \[",
        r"Sort \[k",
    ),
    sql_feature(
        "window group limit",
        """SELECT * FROM (SELECT grp, id, rank() OVER (PARTITION BY grp ORDER BY amount DESC, id) AS place
        FROM facts) WHERE place <= 5""",
        r"WindowGroupLimit \[grp",
    ),
    sql_feature(
        "sort",
        "SELECT name, k, id FROM facts WHERE id % 9 = 0 ORDER BY name DESC NULLS FIRST, k, id",
        r"Exchange rangepartitioning\(name",
        order=Order((0, 1, 2)),
    ),
    sql_feature(
        "top rows",
        "SELECT grp, k, sum(amount) AS total FROM facts GROUP BY grp, k ORDER BY total DESC, grp, k LIMIT 40",
        r"TakeOrderedAndProject",
        order=Order((2, 0, 1), 40),
    ),
    sql_feature(
        "top rows with an offset",
        "SELECT grp, k, count(*) AS n FROM facts GROUP BY grp, k ORDER BY n DESC, grp, k LIMIT 40 OFFSET 15",
        r"TakeOrderedAndProject\(limit=55, offset=15",
        order=Order((2, 0, 1), 40),
    ),
    sql_feature(
        "limit that is sorted and joined",
        """SELECT d.label, count(*), sum(t.id) FROM (SELECT id, k FROM facts ORDER BY amount, id LIMIT 3000) t
        JOIN dims d ON t.k = d.k GROUP BY d.label""",
        r"TakeOrderedAndProject|GlobalLimit 3000",
    ),
    sql_feature(
        "limit of any rows, counted",
        "SELECT count(*) FROM (SELECT * FROM (SELECT DISTINCT k, name FROM facts) LIMIT 100)",
        r"LocalLimit 100",
    ),
    sql_feature(
        "union",
        """SELECT grp, count(*) FROM (SELECT grp, id FROM facts WHERE id < 9000
        UNION SELECT grp, id FROM facts WHERE id > 5000 UNION ALL SELECT k, long_k FROM dims) GROUP BY grp""",
        r"(?m)Union$",
    ),
    sql_feature(
        "intersect",
        "SELECT k, grp FROM facts INTERSECT SELECT k, grp FROM dims",
        r"LeftSemi",
        r"coalesce\(k",
    ),
    sql_feature(
        "intersect all",
        "SELECT k, grp FROM facts WHERE id < 15000 INTERSECT ALL SELECT k, grp FROM facts WHERE id > 5000",
        r"Generate replicaterows",
    ),
    sql_feature(
        "except", "SELECT k, name FROM facts EXCEPT SELECT k, name FROM dims", r"LeftAnti", r"coalesce\(k"
    ),
    sql_feature(
        "except all",
        "SELECT k, grp FROM facts EXCEPT ALL SELECT k, grp FROM facts WHERE id % 3 = 0",
        r"Generate replicaterows",
    ),
    sql_feature(
        "reused exchange",
        """WITH t AS (SELECT k, sum(amount) AS total, count(*) AS n FROM facts GROUP BY k)
        SELECT a.k, a.total, a.n, b.total, b.n FROM t a JOIN t b ON a.k = b.k""",
        r"ReusedExchange",
        conf=NO_BROADCAST,
    ),
    sql_feature(
        "scalar subquery",
        """SELECT grp, count(*), sum(id) FROM facts WHERE amount > (SELECT avg(amount) FROM facts)
        GROUP BY grp""",
        r"Subquery subquery#\d+",
    ),
    sql_feature(
        "scalar subquery used twice",
        """SELECT grp, sum(id) - (SELECT max(id) FROM facts WHERE k = 3) FROM facts
        WHERE id < (SELECT max(id) FROM facts WHERE k = 3) GROUP BY grp""",
        r"ReusedSubquery",
    ),
    sql_feature(
        "correlated scalar subquery",
        """SELECT grp, count(*), sum(id) FROM facts f
        WHERE amount > (SELECT avg(amount) FROM facts g WHERE g.k = f.k) GROUP BY grp""",
        r"SortMergeJoin",
        r"avg\(",
        conf=NO_BROADCAST,
    ),
    sql_feature(
        "IN subquery",
        """SELECT grp, count(*), sum(id) FROM facts
        WHERE k IN (SELECT k FROM facts GROUP BY k HAVING sum(price) > 42000) GROUP BY grp""",
        r"LeftSemi",
    ),
    sql_feature(
        "EXISTS subquery",
        """SELECT grp, count(*), sum(id) FROM facts f
        WHERE EXISTS (SELECT 1 FROM dims d WHERE d.k = f.k AND d.weight > f.price)
        AND NOT EXISTS (SELECT 1 FROM dims d WHERE d.name = f.name AND d.grp = f.grp) GROUP BY grp""",
        r"LeftSemi",
        r"LeftAnti",
    ),
    sql_feature(
        "existence join",
        """SELECT grp, count(*), sum(id) FROM facts f
        WHERE id < 100 OR EXISTS (SELECT 1 FROM dims d WHERE d.k = f.k AND d.grp > 11) GROUP BY grp""",
        r"ExistenceJoin",
    ),
]
