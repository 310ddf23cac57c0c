"""A Spark context is shaped by its conf, and a running context cannot be given another one.

So everything that Godwit needs from Spark is said before the context exists, beside what the program and its
launcher said, and but for one setting never against them. And a warm standby must be shaped like the context
that it waits for, on another machine: what belongs to a machine, and what is secret, does not travel.
"""

import re
from collections.abc import Mapping

EXTENSIONS = "org.apache.spark.sql.godwit.Extensions"

CONNECT_PLUGIN = "org.apache.spark.sql.connect.SparkConnectPlugin"

OF_ONE_MACHINE = re.compile(
    r"spark\.(master|remote|app\.(id|startTime|submitTime|attempt\.id)|submit\..*|local\.dir|home"
    r"|driver\.(host|port|bindAddress|blockManager\.port)|blockManager\.port|ui\.(port|proxyBase)"
    r"|pyspark\..*|kubernetes\..*|yarn\..*)"
)

SECRET = re.compile(r"(?i)secret|password|token|credential|access[.]?key")
"""Spark's own pattern for what it redacts, and a word more: a store has more readers than a driver."""


def additions(given: Mapping[str, str], jar: str, carried: Mapping[str, str]) -> dict[str, str]:
    """What is put into the conf: `carried`, from the driver before this one, and what Godwit itself needs."""
    wanted = {key: value for key, value in carried.items() if key not in given}
    wanted["spark.sql.extensions"] = appended(given.get("spark.sql.extensions", ""), EXTENSIONS)
    wanted["spark.jars"] = appended(given.get("spark.jars", ""), jar)
    # Spark would delete the shuffle files of a query at its end, though the next query may stand on them.
    wanted["spark.sql.classic.shuffleDependency.fileCleanup.enabled"] = "false"
    return wanted


def appended(items: str, item: str) -> str:
    present = [each for each in items.split(",") if each]
    return ",".join(present if item in present else [*present, item])


def portable(conf: Mapping[str, str]) -> dict[str, str]:
    """The part of a conf that another process on another machine takes over."""
    return {
        key: value
        for key, value in conf.items()
        if not OF_ONE_MACHINE.fullmatch(key) and not SECRET.search(key) and key.startswith("spark.")
    }


def is_connect_server(given: Mapping[str, str]) -> bool:
    return CONNECT_PLUGIN in given.get("spark.plugins", "").split(",")
