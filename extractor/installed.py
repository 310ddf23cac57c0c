"""What an installer has put somewhere is known by name and version, and by the record that it keeps of each
file's digest. All other code is the user's own, and has to be looked at.
"""

import hashlib
import importlib.metadata
import json
import os
import re
import site
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import Distribution
from pathlib import Path
from urllib.parse import unquote, urlsplit

OURS = ("godwit", "pyspark", "py4j")
"""Not the user's, wherever they are installed: their versions speak for them."""


@dataclass(frozen=True)
class Distributions:
    sha256: str
    names: Mapping[str, frozenset[str]]  # folder, with a separator at its end -> what they have put there
    elsewhere: tuple[Path, ...]  # where those lie that are installed for development


@cache
def distributions() -> Distributions:
    digests: list[str] = []
    names: dict[str, set[str]] = {}
    elsewhere: list[Path] = []
    python_path = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    for each in importlib.metadata.distributions(path=[*python_path, *package_folders()]):
        record = each.read_text("RECORD") or ""
        digests.append(f"{each.name}=={each.version} {hashlib.sha256(record.encode()).hexdigest()}")
        there = names.setdefault(_as_prefix(str(each.locate_file(""))), set())
        there.update(line.partition(",")[0].partition("/")[0] for line in record.splitlines())
        there.update((each.read_text("top_level.txt") or "").split())
        if each.name not in OURS:
            elsewhere.extend(_editable(each))
    return Distributions(
        hashlib.sha256("\n".join(sorted(digests)).encode()).hexdigest(),
        {folder: frozenset(found) for folder, found in names.items()},
        tuple(elsewhere),
    )


def _editable(distribution: Distribution) -> Iterator[Path]:
    origin = json.loads(distribution.read_text("direct_url.json") or "{}")
    if origin.get("dir_info", {}).get("editable"):
        yield Path(unquote(urlsplit(origin["url"]).path))


def is_installed(path: Path) -> bool:
    """By an installer, or with Python. What somebody has copied beside that is the user's."""
    text = _as_prefix(str(path))
    holding = [folder for folder in distributions().names if text.startswith(folder)]
    if holding:
        names = distributions().names
        return any(text.removeprefix(each).partition(os.sep)[0] in names[each] for each in holding)
    return text.startswith(_python_folders())


@cache
def package_folders() -> tuple[str, ...]:
    """As Python has them once it is through with its .pth files: a standby asks in the middle of them."""
    config = Path(sys.prefix, "pyvenv.cfg")
    alone = config.is_file() and not re.search(
        r"(?im)^include-system-site-packages\s*=\s*true", config.read_text()
    )
    folders = site.getsitepackages([sys.prefix] if alone else [sys.prefix, sys.base_prefix])
    if not alone:
        folders.append(site.getusersitepackages())
    return tuple(dict.fromkeys(folder for folder in folders if os.path.isdir(folder)))


def named_by_pth_files() -> Iterator[Path]:
    """Folders that hold code of packages which are not installed by copying."""
    for folder in map(Path, package_folders()):
        for file in sorted(folder.glob("*.pth")):
            for line in file.read_text(errors="replace").splitlines():
                if line.strip() and not line.startswith(("#", "import ", "import\t")):
                    yield folder / line.strip()


@cache
def _python_folders() -> tuple[str, ...]:
    """Python takes long to name them, and every module asks for them."""
    return tuple(_as_prefix(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib"))


def _as_prefix(folder: str) -> str:
    return os.path.join(os.path.abspath(folder), "")
