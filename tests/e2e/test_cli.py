"""The commands as people type them, before a real Spark."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

GODWIT = Path(sys.executable).with_name("godwit")
SPARK = (
    "--conf",
    "spark.driver.memory=1g",
    "--conf",
    "spark.ui.enabled=false",
    "--conf",
    "spark.sql.shuffle.partitions=4",
)
QUERY = """
SELECT city, count(*) AS sales, sum(amount) AS amount
FROM sales JOIN shops USING (shop) GROUP BY city ORDER BY amount DESC, city NULLS LAST;
"""
ROWS = [
    {"city": "Rome", "sales": 40, "amount": 4040},
    {"city": "Oslo", "sales": 40, "amount": 3920},
    {"city": None, "sales": 20, "amount": 2140},
]


def godwit(*words: object) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([GODWIT, *map(str, words)], capture_output=True, text=True, timeout=300)


@pytest.fixture
def words(tmp_path: Path) -> list[object]:
    """Of `godwit sql`, without the job's name."""
    (tmp_path / "q.sql").write_text(QUERY)
    sales = [f"{number % 5},{number * 2 + number % 5}" for number in range(100)]
    (tmp_path / "sales.csv").write_text("\n".join(["shop,amount", *sales]))
    cities = ["Oslo", "Rome", "Oslo", "Rome", None]
    shops = [json.dumps({"shop": shop, "city": city}) for shop, city in enumerate(cities)]
    (tmp_path / "shops").mkdir()
    (tmp_path / "shops" / "part-0.json").write_text("\n".join(shops))
    tables = ["--table", f"sales={tmp_path}/sales.csv", "--table", f"shops={tmp_path}/shops"]
    return ["--store", tmp_path / "store", *SPARK, tmp_path / "q.sql", *tables]


def test_a_query_is_stopped_looked_at_and_resumed_with_another_number_of_cores(
    tmp_path: Path, words: list[object]
) -> None:
    stopped = godwit(
        "sql", "--json", "--job", "q", "--master", "local[1]", "--stop-after-stages", "2", *words
    )
    assert (stopped.returncode, stopped.stdout) == (75, "")
    (listed,) = map(json.loads, godwit("jobs", "--json", "--store", tmp_path / "store").stdout.splitlines())
    assert (listed["state"], listed["moves"]) == ("moved-out", 1)
    explained = json.loads(godwit("explain", "q", "--json", "--store", tmp_path / "store").stdout)
    assert "kept" in [fate["outcome"] for fate in explained["fates"]]

    (tmp_path / "q.sql").write_text(QUERY.replace("DESC", "ASC"))
    assert godwit("sql", "--json", "--job", "q", *words).returncode == 68
    (tmp_path / "q.sql").write_text(QUERY)

    resumed = godwit("sql", "--json", "--job", "q", "--master", "local[2]", *words)
    assert resumed.returncode == 0
    assert [json.loads(line) for line in resumed.stdout.splitlines()] == ROWS
    assert json.loads(resumed.stderr.splitlines()[0])["begins"] == "resume"
    assert "were used" in resumed.stderr
    assert '"ended"' in godwit("jobs", "--json", "--store", tmp_path / "store").stdout


def test_a_text_that_is_no_sql_is_told_in_one_line(tmp_path: Path, words: list[object]) -> None:
    (tmp_path / "q.sql").write_text("SELEC nonsense")
    told = godwit("sql", "--json", "--job", "q", *words)
    assert (told.returncode, told.stdout) == (1, "")
    assert "PARSE_SYNTAX_ERROR" in json.loads(told.stderr.splitlines()[-1])["error"]
    assert "Traceback" not in told.stderr


def test_what_spark_can_answer_is_printed_though_python_has_no_such_value(tmp_path: Path) -> None:
    (tmp_path / "q.sql").write_text(
        "SELECT date_add(DATE'9999-12-30', 2) AS d, INTERVAL 2 MONTH AS i, 'a\\tb' AS t, X'0aff' AS b,"
        " 1 AS n, 2 AS n"
    )
    store = ("--store", tmp_path / "store", *SPARK, "--master", "local[1]", tmp_path / "q.sql")
    shown = godwit("sql", "--job", "q", *store)
    assert shown.returncode == 0, shown.stderr
    (line,) = [line for line in shown.stdout.splitlines() if "+10000-01-01" in line]
    assert [cell.strip() for cell in line.split("│")[1:-1]] == [
        "+10000-01-01",
        "INTERVAL '2' MONTH",
        r"a\tb",
        "0AFF",
        "1",
        "2",
    ]
    told = godwit("sql", "--json", "--job", "q", *store)
    assert (told.returncode, told.stdout) == (64, "")
    assert "two columns are called n" in json.loads(told.stderr.splitlines()[-1])["error"]


def test_a_store_whose_name_java_cannot_write_is_refused_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "q.sql").write_text("SELECT 1 AS a")
    environment = {**os.environ, "LC_ALL": "POSIX", "PYTHONUTF8": "1"}
    words = ["sql", "--job", "q", "--store", f"{tmp_path}/lager-ä", *SPARK, f"{tmp_path}/q.sql"]
    told = subprocess.run([GODWIT, *words], capture_output=True, text=True, timeout=300, env=environment)
    assert told.returncode == 67, told.stderr
    assert "Java does not find the store" in told.stderr
    assert [each.name for each in tmp_path.glob("lager*")] == ["lager-ä"]


def test_rows_are_written_in_the_format_of_the_outputs_name(tmp_path: Path, words: list[object]) -> None:
    done = godwit("sql", "--job", "q", "--master", "local[2]", *words, "--output", tmp_path / "out.csv")
    assert (done.returncode, done.stdout) == (0, "")
    lines = [
        line for part in sorted((tmp_path / "out.csv").glob("*.csv")) for line in part.read_text().split()
    ]
    assert [line for line in lines if line != "city,sales,amount"] == [
        "Rome,40,4040",
        "Oslo,40,3920",
        ",20,2140",
    ]


def test_the_demonstration_ends_with_equal_rows(tmp_path: Path) -> None:
    shown = godwit("demo", "--json", "--scale", "0.3")
    assert shown.returncode == 0, shown.stderr
    outcome = json.loads(shown.stdout)
    assert outcome["rows_equal"]
    assert outcome["rows"] > 0
    assert outcome["stages_kept"] > 0
