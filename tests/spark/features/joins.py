"""Joins: each strategy with each kind that it can do."""

from tests.spark.features.feature import Feature, sql_feature

NO_BROADCAST = {"spark.sql.autoBroadcastJoinThreshold": "-1"}

STRATEGIES = {"MERGE": "SortMergeJoin", "SHUFFLE_HASH": "ShuffledHashJoin", "BROADCAST": "BroadcastHashJoin"}
KINDS = {
    "INNER": "Inner",
    "LEFT OUTER": "LeftOuter",
    "RIGHT OUTER": "RightOuter",
    "FULL OUTER": "FullOuter",
    "LEFT SEMI": "LeftSemi",
    "LEFT ANTI": "LeftAnti",
}


def join_feature(hint: str, kind: str) -> Feature:
    # A broadcast join can only broadcast the side whose rows need not all come out.
    sides = "facts f {kind} JOIN dims d" if kind != "RIGHT OUTER" else "dims d {kind} JOIN facts f"
    one_sided = kind in ("LEFT SEMI", "LEFT ANTI")
    dim_columns = "" if one_sided else ", d.label, count(d.k), sum(d.weight)"
    text = f"""
        SELECT /*+ {hint}(d) */ f.grp, count(f.id), sum(f.id), sum(f.amount) {dim_columns}
        FROM {sides.format(kind=kind)} ON f.k = d.k AND f.grp + d.grp < {30 if one_sided else 40}
        GROUP BY f.grp {"" if one_sided else ", d.label"}"""
    name = f"{STRATEGIES[hint]} {KINDS[kind]}"
    return sql_feature(name, text, rf"{STRATEGIES[hint]} \[k#\d+\], \[k#\d+\], {KINDS[kind]}")


FEATURES = [
    *(
        join_feature(hint, kind)
        for hint in STRATEGIES
        for kind in KINDS
        if not (hint == "BROADCAST" and kind == "FULL OUTER")
    ),
    sql_feature(
        "broadcast join on a long key",
        """SELECT /*+ BROADCAST(d) */ d.label, count(*), sum(f.id)
        FROM facts f JOIN dims d ON f.hot = d.long_k GROUP BY d.label""",
        r"BroadcastHashJoin \[hot",
        r"HashedRelationBroadcastMode\(List\(input\[0, bigint",
    ),
    sql_feature(
        "broadcast join on a composite key",
        """SELECT /*+ BROADCAST(d) */ d.label, count(*), sum(f.id)
        FROM facts f JOIN dims d ON f.name = d.name AND f.grp = d.grp GROUP BY d.label""",
        r"BroadcastHashJoin \[name#\d+, grp",
    ),
    sql_feature(
        "broadcast join on two integers packed into one long",
        """SELECT /*+ BROADCAST(d) */ d.label, count(*), sum(f.id)
        FROM facts f JOIN dims d ON f.k = d.k AND f.grp = d.grp GROUP BY d.label""",
        r"HashedRelationBroadcastMode\(List\(\(shiftleft\(",
    ),
    sql_feature(
        "broadcast join in which null equals null",
        """SELECT /*+ BROADCAST(d) */ d.label, count(*), sum(f.id), count(f.k)
        FROM facts f JOIN dims d ON f.k <=> d.k GROUP BY d.label""",
        r"BroadcastHashJoin \[coalesce\(k#\d+, 0\), isnull\(k",
    ),
    sql_feature(
        "null-aware anti join",
        """SELECT grp, count(*), sum(id) FROM facts
        WHERE k NOT IN (SELECT k FROM dims WHERE k < 100 OR k > 1000) GROUP BY grp""",
        r"BroadcastHashJoin .* LeftAnti, BuildRight, true",
    ),
    sql_feature(
        "null-aware anti join against a null",
        """SELECT grp, count(*), sum(id) FROM facts WHERE k NOT IN (SELECT k FROM dims) GROUP BY grp
        UNION ALL SELECT -1, count(*), sum(id) FROM facts""",
        initial_plan_contains=(r"BroadcastHashJoin .* LeftAnti, BuildRight, true",),
    ),
    sql_feature(
        "nested loop join",
        """SELECT b.band, count(*), sum(f.id) FROM facts f JOIN bands b
        ON f.price >= b.low AND f.price < b.high GROUP BY b.band""",
        r"BroadcastNestedLoopJoin BuildRight, Inner",
    ),
    sql_feature(
        "nested loop left join",
        """SELECT b.band, count(*), sum(f.id) FROM facts f LEFT JOIN bands b
        ON f.price >= b.low AND f.price < b.high AND b.band > 1 GROUP BY b.band""",
        r"BroadcastNestedLoopJoin BuildRight, LeftOuter",
    ),
    sql_feature(
        "Cartesian product",
        """SELECT a.label, count(*), sum(b.weight) FROM dims a JOIN dims b ON a.weight < b.weight
        GROUP BY a.label""",
        r"CartesianProduct",
        conf=NO_BROADCAST,
    ),
    sql_feature(
        "three joins in a row",
        """SELECT a.label, b.label, count(*), sum(f.amount) FROM facts f
        JOIN dims a ON f.k = a.k JOIN dims b ON f.grp = b.k LEFT JOIN dims c ON f.id = c.long_k
        GROUP BY a.label, b.label""",
        r"(?s)SortMergeJoin.*SortMergeJoin.*SortMergeJoin",
        conf=NO_BROADCAST,
    ),
]
