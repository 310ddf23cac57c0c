"""One pair of drivers for all tests that only ask questions: starting it takes longer than most of them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.spark.features import write_tables
from tests.spark.rig import Rig, open_rig


@pytest.fixture(scope="session")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with open_rig(tmp_path_factory.mktemp("rig")) as rig:
        yield rig


@pytest.fixture(scope="session")
def small_tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tables")
    write_tables(folder)
    return folder
