"""State belongs to the program that made it. A row counted by yesterday's code must not meet today's.

The plan's fingerprint sees queries, but not the Python behind them: functions are pickled by the name of
their module, and what a module contains is nobody's business in a plan. So a program is identified here:
its file, its arguments, the user's modules that it has loaded, the versions of everything else. Another
program is an error, as somebody mixed up two jobs; another version of a helper module only means that the
state is refused and recomputed, and said.

When a job resumes, its program has not imported anything yet: the recorded modules are looked up on disk.
"""

import hashlib
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

from godwit.extractor.errors import GodwitError, OtherProgram, OtherVersion
from godwit.extractor.installed import OURS, distributions, is_installed
from godwit.extractor.workercode import TOO_MUCH


@dataclass(frozen=True)
class Module:
    name: str
    path: str  # relative to the program's folder if beneath it; of a zip archive for what is inside one
    sha256: str | None  # None: there is no such file now


@dataclass(frozen=True)
class Program:
    path: str
    sha256: str | None  # None: no file, as with `python -c` or a shell
    args: tuple[str, ...]
    modules: tuple[Module, ...]
    python_version: str
    pyspark_version: str
    distributions_sha256: str
    code_sha256: str | None  # of all that workers may import, see `workercode`; None: nobody can tell

    @property
    def unknowable(self) -> str | None:
        """Why no later driver can tell whether it runs the same program."""
        if self.sha256 is None:
            return "the program is not in a file, so nobody can tell whether it is the same"
        if self.code_sha256 is None:
            return TOO_MUCH
        return None


@dataclass(frozen=True)
class Difference:
    """`error`: what to raise for it; None if it only means that the state must not be used."""

    sentence: str
    error: type[GodwitError] | None


def describe(argv: Sequence[str], modules: Mapping[str, ModuleType], code_sha256: str | None) -> Program:
    """The program of this process, from `sys.argv` and `sys.modules`; pyspark must be among them."""
    program = Path(os.path.abspath(argv[0]))
    return Program(
        path=str(program),
        sha256=_sha256(program),
        args=tuple(argv[1:]),
        modules=tuple(_user_modules(program, modules)),
        python_version=platform.python_version(),
        pyspark_version=modules["pyspark"].__version__,
        distributions_sha256=distributions().sha256,
        code_sha256=code_sha256,
    )


def with_modules(program: Program, modules: Mapping[str, ModuleType]) -> Program:
    """A program that has loaded more since it was described."""
    return replace(program, modules=(*program.modules, *_user_modules(Path(program.path), modules)))


def describe_again(
    stored: Program,
    argv: Sequence[str],
    modules: Mapping[str, ModuleType],
    code_sha256: str | None,
    search_path: Sequence[str],
) -> Program:
    """Like `describe`, but with the modules that made the state, as they are now, imported or not yet."""
    now = describe(argv, modules, code_sha256)
    folder = Path(now.path).parent
    return replace(
        now,
        modules=tuple(
            replace(module, sha256=_sha256(_find(module, folder, modules, search_path)))
            for module in stored.modules
        ),
    )


def differences(stored: Program, now: Program) -> tuple[Difference, ...]:
    """What keeps `now` from using the state that `stored` made; none: nothing does."""
    return tuple(_differences(stored, now))


def _differences(stored: Program, now: Program) -> Iterator[Difference]:
    if stored.sha256 is None or now.sha256 is None:
        yield Difference("the program is not in a file, so nobody can tell whether it is the same", None)
    elif stored.sha256 != now.sha256:
        yield Difference(f"{now.path} is not the program that made the state ({stored.path})", OtherProgram)
    if stored.args != now.args:
        yield Difference(f"the arguments were {_quoted(stored)}, now they are {_quoted(now)}", OtherProgram)
    for name, before, after in (
        ("Python", stored.python_version, now.python_version),
        ("Spark", stored.pyspark_version, now.pyspark_version),
    ):
        if before != after:
            yield Difference(f"the state was made with {name} {before}, this is {name} {after}", OtherVersion)
    if stored.distributions_sha256 != now.distributions_sha256:
        yield Difference("other packages or versions are installed than made the state", None)
    changed = list(_changed_modules(stored.modules, now.modules))
    yield from changed
    if not changed and (stored.code_sha256 is None or stored.code_sha256 != now.code_sha256):
        yield Difference(
            "the code beside the program, in the current folder or on PYTHONPATH has changed, or is unknown",
            None,
        )


def _changed_modules(stored: Sequence[Module], now: Sequence[Module]) -> Iterator[Difference]:
    found = {module.name: module.sha256 for module in now}
    for module in stored:
        if (sha256 := found.get(module.name)) is None:
            yield Difference(f"module {module.name} ({module.path}) is not to be found", None)
        elif sha256 != module.sha256:
            yield Difference(f"module {module.name} ({module.path}) has changed", None)


def _quoted(program: Program) -> str:
    return repr(list(program.args))


def _user_modules(program: Path, modules: Mapping[str, ModuleType]) -> Iterator[Module]:
    for name, module in sorted(modules.items()):
        path = _file_of(module)
        if path is not None and path != program and name.split(".")[0] not in OURS and not is_installed(path):
            relative = path.is_relative_to(program.parent)
            shown = path.relative_to(program.parent) if relative else path
            yield Module(name, str(shown), _sha256(path))


def _file_of(module: ModuleType) -> Path | None:
    """The file that a module came from; for one inside a zip archive the archive."""
    # Not by asking the module, which may be one that imports itself, or anything, when it is asked.
    name = object.__getattribute__(module, "__dict__").get("__file__")
    if not name or not isinstance(name, str):
        return None
    path = Path(os.path.abspath(name))
    return next((each for each in (path, *path.parents) if each.is_file()), None)


def _find(
    module: Module, folder: Path, modules: Mapping[str, ModuleType], search_path: Sequence[str]
) -> Path:
    """The file that an import of the module gives now: where it was imported from, or will be.

    Not simply where it was: Spark copies `--py-files` to a new folder for every driver, and an old copy
    that was left behind says nothing about the new one.
    """
    if module.name in modules and (file := _file_of(modules[module.name])) is not None:
        return file
    recorded = folder / module.path
    inside = module.name.replace(".", "/")
    candidates: list[Path] = []
    for entry in map(Path, search_path):
        archive = [entry] if entry.name == recorded.name else []
        candidates += [*archive, entry / inside / "__init__.py", entry / f"{inside}.py"]
    return next((each for each in candidates if each.is_file()), recorded)


def _sha256(path: Path) -> str | None:
    """None: it is no file, or cannot be read, and nobody can tell."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return None
