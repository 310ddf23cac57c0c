"""A module that only a Python function on the executors imports is never loaded in the driver, and nobody
knows its name before. So all code that lies where Spark's Python workers would find it is looked at as a
whole.

Workers look in the folder that the JVM was started in, on its PYTHONPATH and the one that `spark.executorEnv`
gives them, in folders named by .pth files, in what is installed for development, and among the installed
packages, where somebody may have copied something by hand. The program's own folder is looked at as well.
Of executors on other machines only what they are sent is known.
"""

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import all_suffixes
from pathlib import Path

from godwit.extractor.installed import (
    OURS,
    distributions,
    is_installed,
    named_by_pth_files,
    package_folders,
)

CODE = (*all_suffixes(), ".zip", ".egg", ".whl")

LIMIT_FILES = 20_000
LIMIT_BYTES = 1 << 30
"""A program that lies at the root of a disk: nobody waits for that, and its state is not used."""

TOO_MUCH = (
    "the code beside the program, in the current folder or on PYTHONPATH cannot be read, or is more than "
    f"{LIMIT_FILES:,} files or {LIMIT_BYTES >> 20:,} MB"
)


@dataclass(frozen=True)
class Surroundings:
    """Of the driver's JVM, which its Python workers inherit."""

    folder: str
    python_path: str


class _TooMuchError(Exception):
    pass


def places(program: Path, surroundings: Surroundings, conf: Mapping[str, str]) -> list[Path]:
    """Where the workers of a program look for modules, the first first; files are archives."""
    named = (
        *([surroundings.folder] if conf.get("spark.master", "local").startswith("local") else []),
        *conf.get("spark.executorEnv.PYTHONPATH", "").split(os.pathsep),
        *surroundings.python_path.split(os.pathsep),
        str(program.parent),
        *package_folders(),
    )
    # An empty entry is the current folder, which is there already.
    found = (Path(os.path.abspath(entry)) for entry in named if entry)
    return list(dict.fromkeys([*found, *named_by_pth_files(), *distributions().elsewhere]))


def sha256(program: Path, places: Sequence[Path]) -> str | None:
    """Of all code at these places but the program; None: it cannot be read, or is too much.

    Files count by their place beneath, so that folders may be moved. What an earlier place has already
    says nothing more, and a place without code nothing at all.
    """
    seen: set[str] = set()
    digest = hashlib.sha256()
    look = _Look()
    try:
        for place in places:
            code = {f"{name}\n{look.sha256(path)}\n" for name, path in look.code(place) if path != program}
            if fresh := sorted(code - seen):
                digest.update(f"{len(fresh)}\n{''.join(fresh)}".encode())
            seen |= code
    except (OSError, _TooMuchError):
        return None
    return digest.hexdigest()


class _Look:
    """No folder or file is looked at twice, however many places it lies beneath."""

    def __init__(self) -> None:
        self._digests: dict[Path, str] = {}
        self._met = 0
        self._bytes = 0

    def code(self, place: Path) -> Iterator[tuple[str, Path]]:
        """The files of code there, with their names."""
        if is_installed(place):
            return
        archive = next((each for each in (place, *place.parents) if each.is_file()), None)
        if archive is not None:
            yield archive.name, archive
        elif place.is_dir():
            yield from self._beneath(place, place, frozenset())

    def _beneath(self, place: Path, folder: Path, above: frozenset[Path]) -> Iterator[tuple[str, Path]]:
        real = folder.resolve()
        if real in above:  # a link to where it lies
            return
        self._count()
        for entry in _entries(folder):
            path = Path(entry.path)
            if folder == place and (entry.name in OURS or is_installed(path)):
                continue
            if entry.is_dir():
                if not _aside(path):
                    yield from self._beneath(place, path, above | {real})
            elif entry.name.endswith(CODE) and entry.is_file():
                self._count()
                yield str(path.relative_to(place)), path

    def sha256(self, path: Path) -> str:
        real = path.resolve()
        if real not in self._digests:
            self._bytes += real.stat().st_size
            self._check()
            with real.open("rb") as file:
                self._digests[real] = hashlib.file_digest(file, "sha256").hexdigest()
        return self._digests[real]

    def _count(self) -> None:
        self._met += 1
        self._check()

    def _check(self) -> None:
        if self._met > LIMIT_FILES or self._bytes > LIMIT_BYTES:
            raise _TooMuchError


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            return sorted(found, key=lambda each: each.name)
    except OSError:
        return []  # nor can a worker import from it


def _aside(folder: Path) -> bool:
    """Hidden, compiled, or a virtual environment: none of it is the program's own code."""
    return folder.name.startswith((".", "__pycache__")) or (folder / "pyvenv.cfg").exists()
