"""Types: each goes through a shuffle as a value, and as a key where it can be one."""

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from tests.spark.features.feature import Feature, sql_feature
from tests.spark.features.tables import open_tables


def char_and_varchar(spark: SparkSession, folder: Path) -> DataFrame:
    open_tables(spark, folder)
    # Only a relation of the catalog has columns of these types, and reading it is what pads them.
    columns = "name CHAR(12), label VARCHAR(20), k INT"
    options = f"path '{folder}/dims'"
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW padded ({columns}) USING parquet OPTIONS ({options})")
    return spark.sql("SELECT name, count(label), max(label), length(name) FROM padded GROUP BY name")


FEATURES = [
    sql_feature(
        "nested types",
        """SELECT place.city, place.geo.lat, count(*), array_sort(collect_set(numbers)) AS sets,
        max(named_struct('p', price, 'i', id)) AS top, map('c', place.city) AS m
        FROM facts GROUP BY place.city, place.geo.lat, place""",
        r"hashpartitioning\(.*place#\d+",
    ),
    sql_feature(
        "nested values through a repartition",
        "SELECT /*+ REPARTITION(5, id) */ id, numbers, place, map(day, numbers) AS m FROM facts WHERE k < 20",
        r"REPARTITION_BY_NUM",
        r"map\(day",
    ),
    sql_feature(
        "decimals",
        """SELECT CAST(amount AS DECIMAL(38, 18)) AS wide, count(*), sum(CAST(id AS DECIMAL(38, 0))),
        avg(amount * quarter), sum(amount / 7) FROM facts WHERE id % 3 = 0 GROUP BY 1""",
        r"decimal\(38,\s*18\)",
    ),
    sql_feature(
        "timestamps",
        """SELECT at, moment, date_trunc('hour', moment) AS hour, count(*), min(day)
        FROM (SELECT *, CAST(at AS TIMESTAMP) AS moment FROM facts) WHERE grp < 5 GROUP BY at, moment""",
        r"cast\(at#\d+ as timestamp\)",
        r"hashpartitioning\(at#\d+",
    ),
    sql_feature(
        "times",
        """SELECT CAST(at AS TIME(6)) AS time, count(*), max(CAST(at AS TIME(6))) FROM facts WHERE k < 50
        GROUP BY 1""",
        r"as time\(6\)",
        conf={"spark.sql.timeType.enabled": "true"},
    ),
    sql_feature(
        "binary",
        "SELECT raw, count(*), max(raw), sum(id) FROM facts GROUP BY raw",
        r"hashpartitioning\(raw#\d+",
    ),
    sql_feature(
        "day-time intervals",
        """SELECT at - TIMESTAMP_NTZ '2024-01-01 00:00:00' AS age, count(*),
        sum(make_dt_interval(0, 0, 0, grp)), max(at - TIMESTAMP_NTZ '2024-03-01 00:00:00')
        FROM facts WHERE k < 40 GROUP BY 1""",
        r"\(at#\d+ - 2024-01-01 00:00:00\) AS _groupingexpression",
        r"make_dt_interval",
    ),
    sql_feature(
        "year-month intervals",
        """SELECT CAST(y AS STRING), count(*), CAST(sum(y) AS STRING) FROM
        (SELECT make_ym_interval(grp % 4, k % 12) AS y FROM facts) GROUP BY y""",
        r"make_ym_interval",
    ),
    sql_feature(
        "calendar intervals",
        """SELECT grp, max(day + i) FROM (SELECT /*+ REPARTITION(4, grp) */ grp, day,
        make_interval(0, k % 5, 0, grp) AS i FROM facts) GROUP BY grp""",
        r"make_interval",
        r"REPARTITION_BY_NUM",
    ),
    sql_feature(
        "variants",
        """SELECT variant_get(v, '$.a', 'int') AS a, count(*), max(variant_get(v, '$.b.c', 'string')),
        min(to_json(v)) FROM (SELECT /*+ REPARTITION(4, id) */ id, parse_json(json) AS v FROM jsons)
        GROUP BY 1""",
        r"parseJson",
        r"variant_get",
        r"REPARTITION_BY_NUM",
    ),
    sql_feature(
        "collations as keys",
        """SELECT lower(name), count(*), sum(id) FROM (SELECT id,
        (CASE WHEN id % 2 = 0 THEN upper(name) ELSE name END) COLLATE UTF8_LCASE AS name FROM facts)
        GROUP BY name""",
        r"collate\(.*, UTF8_LCASE\) AS name",
    ),
    sql_feature(
        "collations in a join",
        """SELECT d.label, count(*), sum(f.id) FROM facts f JOIN dims d
        ON upper(f.name) COLLATE UNICODE_CI = d.name COLLATE UNICODE_CI AND f.grp = d.grp GROUP BY d.label""",
        r"hashpartitioning\(collate\(.*, UNICODE_CI\)",
    ),
    Feature("char and varchar", char_and_varchar, (r"readSidePadding\(name#\d+, 12\)",)),
    sql_feature(
        "generators",
        """SELECT n, p, count(*), sum(id) FROM facts LATERAL VIEW OUTER posexplode(numbers) AS p, n
        GROUP BY n, p""",
        r"Generate posexplode\(numbers#\d+\), .*true",
    ),
    sql_feature(
        "generators above a shuffle",
        """SELECT grp, x, y FROM (SELECT grp, array_sort(collect_set(named_struct('x', k, 'y', name))) AS s
        FROM facts WHERE id < 4000 GROUP BY grp) LATERAL VIEW inline(s) AS x, y""",
        r"Generate inline",
    ),
    sql_feature(
        "input_file_name",
        "SELECT input_file_name(), count(*), sum(id) FROM facts GROUP BY input_file_name()",
        r"input_file_name\(\)",
    ),
]
