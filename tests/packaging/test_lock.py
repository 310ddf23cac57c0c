"""A lock file written behind a company's mirror installs nowhere else."""

import re
from pathlib import Path

LOCK = Path(__file__).parents[2] / "uv.lock"


def test_the_lock_file_names_no_host_but_the_public_registry() -> None:
    hosts = set(re.findall(r"https?://([^/\"]+)", LOCK.read_text()))
    assert hosts == {"pypi.org", "files.pythonhosted.org"}
