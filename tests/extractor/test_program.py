import importlib
import shutil
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from godwit.extractor import program as programs
from godwit.extractor.errors import GodwitError, OtherProgram, OtherVersion
from godwit.extractor.installed import distributions
from godwit.extractor.program import Module, Program, describe_again, differences
from tests.extractor.samples import PROGRAM


def module(name: str, file: Path | None = None, **facts: Any) -> ModuleType:
    made = ModuleType(name)
    vars(made).update({"__file__": str(file) if file else None, **facts})
    return made


CODE = "c0de"


def describe(argv: list[str], modules: dict[str, ModuleType]) -> Program:
    return programs.describe(argv, modules, CODE)


PYSPARK = module("pyspark", __version__="4.3.0")


@pytest.fixture
def etl(tmp_path: Path) -> Path:
    """A program with a module beside it and one elsewhere."""
    (tmp_path / "app" / "lib").mkdir(parents=True)
    (tmp_path / "shared").mkdir()
    (tmp_path / "app" / "etl.py").write_text("import lib.clean, rates")
    (tmp_path / "app" / "lib" / "clean.py").write_text("LIMIT = 1")
    (tmp_path / "shared" / "rates.py").write_text("RATE = 1")
    return tmp_path / "app" / "etl.py"


def loaded(etl: Path) -> dict[str, ModuleType]:
    return {
        "pyspark": PYSPARK,
        "__main__": module("__main__", etl),
        "lib.clean": module("lib.clean", etl.parent / "lib" / "clean.py"),
        "rates": module("rates", etl.parent.parent / "shared" / "rates.py"),
    }


def resumed(stored: Program, etl: Path, *args: str, search_path: tuple[str, ...] = ()) -> Program:
    """The program as it is seen at the start of the next driver, before it has imported anything."""
    return describe_again(stored, [str(etl), *args], {"pyspark": PYSPARK}, CODE, search_path)


def sentences(stored: Program, now: Program) -> list[str]:
    return [each.sentence for each in differences(stored, now)]


# What belongs to a program


def test_a_program_is_its_file_its_arguments_and_the_users_modules(etl: Path) -> None:
    program = describe([str(etl), "--day", "1"], loaded(etl))
    assert (program.path, program.args) == (str(etl), ("--day", "1"))
    assert [(each.name, each.path) for each in program.modules] == [
        ("lib.clean", "lib/clean.py"),
        ("rates", str(etl.parent.parent / "shared" / "rates.py")),
    ]
    assert program.pyspark_version == "4.3.0"
    assert program.python_version == ".".join(map(str, sys.version_info[:3]))


def test_installed_modules_pyspark_and_godwit_are_not_the_users(etl: Path) -> None:
    installed = {name: importlib.import_module(name) for name in ("json.decoder", "msgpack", "pytest", "sys")}
    ours = {
        name: module(name, etl.parent / "lib" / "clean.py") for name in ("godwit.extractor.x", "py4j.java")
    }
    with_name_alike = {"godwitness": module("godwitness", etl.parent / "lib" / "clean.py")}
    program = describe([str(etl)], {"pyspark": PYSPARK, **installed, **ours, **with_name_alike})
    assert [each.name for each in program.modules] == ["godwitness"]


def test_a_module_in_a_zip_archive_is_identified_by_the_archive(etl: Path) -> None:
    archive = etl.parent / "deps.zip"
    with zipfile.ZipFile(archive, "w") as made:
        made.writestr("deps/core.py", "X = 1")
    inside = {"deps.core": module("deps.core", archive / "deps" / "core.py")}
    program = describe([str(etl)], {"pyspark": PYSPARK, **inside})
    assert [(each.name, each.path) for each in program.modules] == [("deps.core", "deps.zip")]
    archive.write_bytes(b"another archive")
    assert sentences(program, resumed(program, etl)) == ["module deps.core (deps.zip) has changed"]


def test_the_same_program_has_no_differences(etl: Path) -> None:
    program = describe([str(etl), "x"], loaded(etl))
    assert differences(program, describe([str(etl), "x"], loaded(etl))) == ()
    assert differences(program, resumed(program, etl, "x")) == ()


def test_a_program_may_resume_from_another_folder(etl: Path, tmp_path: Path) -> None:
    program = describe([str(etl)], loaded(etl))
    moved = shutil.copytree(etl.parent, tmp_path / "elsewhere") / "etl.py"
    shutil.rmtree(etl.parent)
    assert differences(program, resumed(program, moved)) == ()


# What makes it another one


@pytest.mark.parametrize(
    ("facts", "error", "sentence"),
    [
        (
            {"sha256": "ff"},
            OtherProgram,
            "/jobs/etl.py is not the program that made the state (/jobs/etl.py)",
        ),
        ({"args": ("--day", "2")}, OtherProgram, "were ['--day', '1'], now they are ['--day', '2']"),
        ({"args": ()}, OtherProgram, "now they are []"),
        ({"python_version": "3.12.1"}, OtherVersion, "made with Python 3.11.7, this is Python 3.12.1"),
        ({"pyspark_version": "4.2.0"}, OtherVersion, "made with Spark 4.3.0, this is Spark 4.2.0"),
        ({"distributions_sha256": "ff"}, None, "other packages or versions are installed"),
        ({"code_sha256": "ff"}, None, "the code beside the program"),
        ({"code_sha256": None}, None, "the code beside the program"),
        ({"sha256": None}, None, "the program is not in a file"),
        ({"modules": PROGRAM.modules[:1]}, None, "module shared (/lib/shared.zip) is not to be found"),
    ],
)
def test_each_difference_is_named_and_is_an_error_or_a_recompute(
    facts: dict[str, Any], error: type[GodwitError] | None, sentence: str
) -> None:
    (difference,) = differences(PROGRAM, replace(PROGRAM, **facts))
    assert difference.error is error
    assert sentence in difference.sentence


def test_all_differences_are_told_at_once() -> None:
    now = replace(PROGRAM, sha256="ff", args=(), pyspark_version="5", modules=())
    assert len(differences(PROGRAM, now)) == 5


def test_where_the_program_lies_is_no_difference() -> None:
    assert differences(PROGRAM, replace(PROGRAM, path="/elsewhere/etl.py")) == ()


def test_a_module_that_the_state_was_not_made_with_is_no_difference() -> None:
    more = (*PROGRAM.modules, Module("imported_later", "later.py", "ee"))
    assert differences(PROGRAM, replace(PROGRAM, modules=more)) == ()


def test_a_changed_program_file_is_noticed(etl: Path) -> None:
    program = describe([str(etl)], loaded(etl))
    etl.write_text("import lib.clean, rates  # another")
    (difference,) = differences(program, resumed(program, etl))
    assert difference.error is OtherProgram


def test_a_changed_module_is_noticed_before_it_is_imported(etl: Path) -> None:
    program = describe([str(etl)], loaded(etl))
    (etl.parent / "lib" / "clean.py").write_text("LIMIT = 2")
    (etl.parent.parent / "shared" / "rates.py").unlink()
    assert sentences(program, resumed(program, etl)) == [
        "module lib.clean (lib/clean.py) has changed",
        f"module rates ({etl.parent.parent / 'shared' / 'rates.py'}) is not to be found",
    ]


def test_a_program_without_a_file_never_matches_not_even_itself(tmp_path: Path) -> None:
    program = describe([str(tmp_path / "-c")], {"pyspark": PYSPARK})
    assert program.sha256 is None
    assert [each.error for each in differences(program, program)] == [None]


# Spark copies --py-files to a new folder for every driver


@pytest.mark.parametrize("file", ["rates.py", "rates/__init__.py"])
def test_a_module_whose_folder_has_gone_is_found_where_python_would_find_it(etl: Path, file: str) -> None:
    old, new = etl.parent.parent / "userFiles-1", etl.parent.parent / "userFiles-2"
    for folder in (old, new):
        (folder / file).parent.mkdir(parents=True)
        (folder / file).write_text("RATE = 1")
    program = describe([str(etl)], {"pyspark": PYSPARK, "rates": module("rates", old / file)})
    shutil.rmtree(old)
    assert differences(program, resumed(program, etl, search_path=("", str(new)))) == ()
    (new / file).write_text("RATE = 2")
    assert len(differences(program, resumed(program, etl, search_path=("", str(new))))) == 1


def test_a_module_that_imports_itself_when_it_is_asked_is_not_asked(etl: Path) -> None:
    class Lazy(ModuleType):
        def __getattribute__(self, name: str) -> Any:
            raise ImportError(f"somebody asked for {name}")

    described = describe([str(etl)], {**loaded(etl), "lazy": Lazy("lazy"), "odd": module("odd", __file__=7)})
    assert {each.name for each in described.modules} == {"lib.clean", "rates"}


def test_a_program_that_can_be_told_again_is_knowable(etl: Path) -> None:
    known = describe([str(etl)], loaded(etl))
    assert known.unknowable is None
    assert "not in a file" in str(replace(known, sha256=None).unknowable)
    assert "20,000 files" in str(replace(known, code_sha256=None).unknowable)


def test_an_old_copy_that_was_left_behind_does_not_hide_a_changed_module(etl: Path) -> None:
    old, new = etl.parent.parent / "userFiles-1", etl.parent.parent / "userFiles-2"
    for folder, text in ((old, "RATE = 1"), (new, "RATE = 2")):
        folder.mkdir()
        (folder / "rates.py").write_text(text)
    program = describe([str(etl)], {"pyspark": PYSPARK, "rates": module("rates", old / "rates.py")})
    assert len(differences(program, resumed(program, etl, search_path=(str(new),)))) == 1


def test_a_module_that_is_imported_already_is_taken_from_where_it_came_from(etl: Path) -> None:
    program = describe([str(etl)], loaded(etl))
    other = etl.parent.parent / "other.py"
    other.write_text("RATE = 2")
    now = describe_again(program, [str(etl)], {"pyspark": PYSPARK, "rates": module("rates", other)}, CODE, [])
    assert [each.name for each in now.modules] == ["lib.clean", "rates"]
    assert len(differences(program, now)) == 1


def test_an_archive_whose_folder_has_gone_is_found_on_the_path_of_python(etl: Path) -> None:
    old, new = etl.parent.parent / "userFiles-1", etl.parent.parent / "userFiles-2"
    for folder in (old, new):
        folder.mkdir()
        (folder / "deps.zip").write_bytes(b"the same")
    program = describe(
        [str(etl)], {"pyspark": PYSPARK, "deps.a": module("deps.a", old / "deps.zip" / "deps" / "a.py")}
    )
    shutil.rmtree(old)
    assert differences(program, resumed(program, etl, search_path=(str(new / "deps.zip"),))) == ()
    assert len(differences(program, resumed(program, etl))) == 1


def test_the_same_version_installed_again_from_other_code_is_another_distribution(
    etl: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "path" / "rates-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rates\nVersion: 1.0\n")
    monkeypatch.setenv("PYTHONPATH", str(info.parent))
    found = set()
    for digest in ("sha256=aaaa", "sha256=bbbb"):
        (info / "RECORD").write_text(f"rates.py,{digest},10\n")
        distributions.cache_clear()
        found.add(describe([str(etl)], {"pyspark": PYSPARK}).distributions_sha256)
    distributions.cache_clear()
    assert len(found) == 2
