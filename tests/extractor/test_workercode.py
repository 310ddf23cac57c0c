import importlib.metadata
import os
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from godwit.extractor import installed, workercode
from godwit.extractor.workercode import Surroundings, places, sha256


@pytest.fixture
def app(tmp_path: Path) -> Path:
    """A program's folder."""
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "etl.py").write_text("print(1)")
    return tmp_path / "app"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The only folder of installed packages."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    monkeypatch.setattr(installed, "package_folders", lambda: (str(folder),))
    monkeypatch.setattr(workercode, "package_folders", lambda: (str(folder),))
    installed.distributions.cache_clear()
    yield folder
    installed.distributions.cache_clear()


def install(site: Path, name: str, files: Mapping[str, str], origin: str | None = None) -> None:
    info = site / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "RECORD").write_text("".join(f"{file},sha256=aa,1\n" for file in files))
    if origin is not None:
        (info / "direct_url.json").write_text(origin)
    for file, text in files.items():
        write(site / file, text)
    installed.distributions.cache_clear()


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def digest(app: Path, folder: str = "", python_path: str = "", **conf: str) -> str | None:
    program = app / "etl.py"
    spark = {f"spark.{key.replace('_', '.')}": value for key, value in conf.items()}
    return sha256(program, places(program, Surroundings(folder, python_path), spark))


# Where a worker finds code, another code is another program


def test_beside_the_program(app: Path, site: Path) -> None:
    write(app / "lib" / "lazy.py", "RATE = 1")
    before = digest(app)
    write(app / "lib" / "lazy.py", "RATE = 2")
    assert digest(app) != before


def test_in_the_folder_where_spark_was_started_if_that_is_where_workers_start(
    app: Path, site: Path, tmp_path: Path
) -> None:
    here = str(tmp_path / "here")
    write(tmp_path / "here" / "lazy.py", "RATE = 1")
    before, far = digest(app, here), digest(app, here, master="k8s://cluster")
    write(tmp_path / "here" / "lazy.py", "RATE = 2")
    assert digest(app, here) != before
    assert digest(app, here, master="k8s://cluster") == far == digest(app)


def test_on_the_path_that_the_executors_are_given(app: Path, site: Path, tmp_path: Path) -> None:
    write(tmp_path / "given" / "lazy.py", "RATE = 1")
    given = {"executorEnv_PYTHONPATH": f"/nowhere{os.pathsep}{tmp_path / 'given'}"}
    before = digest(app, **given)
    write(tmp_path / "given" / "lazy.py", "RATE = 2")
    assert digest(app, **given) != before != digest(app)


@pytest.mark.parametrize("name", ["lazy.zip", "lazy-1.0-py3-none-any.whl", "lazy.anything"])
def test_in_an_archive_on_the_python_path(app: Path, site: Path, tmp_path: Path, name: str) -> None:
    archive = tmp_path / name
    found = set()
    for rate in ("RATE = 1", "RATE = 2"):
        with zipfile.ZipFile(archive, "w") as made:
            made.writestr("inside/lazy.py", rate)
        found |= {digest(app, python_path=str(archive)), digest(app, python_path=f"{archive}/inside")}
    assert len(found) == 2


@pytest.mark.parametrize("suffix", [".so", ".abi3.so", ".pyc", ".whl", ".egg"])
def test_code_that_is_not_source(app: Path, site: Path, tmp_path: Path, suffix: str) -> None:
    write(tmp_path / "path" / f"lazy{suffix}", "1")
    before = digest(app, python_path=str(tmp_path / "path"))
    write(tmp_path / "path" / f"lazy{suffix}", "2")
    assert digest(app, python_path=str(tmp_path / "path")) != before


def test_behind_links(app: Path, site: Path, tmp_path: Path) -> None:
    write(tmp_path / "elsewhere" / "lazy.py", "RATE = 1")
    (app / "lib").symlink_to(tmp_path / "elsewhere")
    (app / "lib" / "loop").symlink_to(app)
    before = digest(app)
    write(tmp_path / "elsewhere" / "lazy.py", "RATE = 2")
    assert digest(app) != before


def test_in_a_folder_that_a_pth_file_names(app: Path, site: Path, tmp_path: Path) -> None:
    write(tmp_path / "source" / "lazy.py", "RATE = 1")
    write(site / "lazy.pth", f"# comment\nimport os\n{tmp_path / 'source'}\n")
    before = digest(app)
    write(tmp_path / "source" / "lazy.py", "RATE = 2")
    assert digest(app) != before


def test_in_what_is_installed_for_development(app: Path, site: Path, tmp_path: Path) -> None:
    write(tmp_path / "my source" / "lazy.py", "RATE = 1")
    url = (tmp_path / "my source").as_uri()
    install(
        site,
        "lazy",
        {"__editable___lazy_finder.py": ""},
        f'{{"url": "{url}", "dir_info": {{"editable": true}}}}',
    )
    before = digest(app)
    write(tmp_path / "my source" / "lazy.py", "RATE = 2")
    assert digest(app) != before


def test_copied_among_installed_packages(app: Path, site: Path) -> None:
    install(site, "pandas", {"pandas/core.py": "1", "six.py": "1"})
    write(site / "copied" / "lazy.py", "RATE = 1")
    before = digest(app)
    write(site / "copied" / "lazy.py", "RATE = 2")
    assert digest(app) != before


# What tells nothing


def test_what_an_installer_has_put_there_is_told_by_its_record(app: Path, site: Path) -> None:
    before = digest(app)
    install(site, "pandas", {"pandas/core.py": "1", "six.py": "1"})
    assert digest(app) == before
    assert digest(app, python_path=str(site)) == before


def test_spark_and_godwit_are_told_by_their_versions(app: Path, site: Path, tmp_path: Path) -> None:
    before = digest(app)
    write(tmp_path / "python" / "pyspark" / "sql.py", "1")
    write(tmp_path / "python" / "godwit" / "extractor.py", "1")
    assert digest(app, python_path=str(tmp_path / "python")) == before


def test_the_program_itself_compiled_files_hidden_ones_and_virtual_environments(
    app: Path, site: Path
) -> None:
    before = digest(app)
    write(app / "etl.py", "print(2)")
    write(app / "__pycache__" / "etl.cpython-311.pyc", "1")
    write(app / ".git" / "hook.py", "1")
    write(app / "venv" / "pyvenv.cfg", "home = /usr/bin")
    write(app / "venv" / "lib" / "x.py", "1")
    write(app / "data.csv", "1")
    assert digest(app) == before


def test_where_folders_lie(app: Path, site: Path, tmp_path: Path) -> None:
    write(app / "lib" / "lazy.py", "RATE = 1")
    write(tmp_path / "path" / "more.py", "RATE = 1")
    before = digest(app, str(app), python_path=str(tmp_path / "path"))
    (tmp_path / "moved").mkdir()
    app.rename(tmp_path / "moved" / "app")
    (tmp_path / "path").rename(tmp_path / "moved" / "path")
    moved = tmp_path / "moved"
    assert digest(moved / "app", str(moved / "app"), python_path=str(moved / "path")) == before


def test_a_place_without_code_or_with_the_same_again(app: Path, site: Path, tmp_path: Path) -> None:
    write(app / "lazy.py", "RATE = 1")
    (tmp_path / "empty").mkdir()
    assert digest(app, str(tmp_path / "empty")) == digest(app, str(app)) == digest(app)


def test_but_the_order_of_places_does(app: Path, site: Path, tmp_path: Path) -> None:
    write(tmp_path / "one" / "lazy.py", "RATE = 1")
    write(tmp_path / "two" / "lazy.py", "RATE = 2")
    one, two = str(tmp_path / "one"), str(tmp_path / "two")
    assert digest(app, python_path=f"{one}:{two}") != digest(app, python_path=f"{two}:{one}")


# What nobody can tell


def test_code_that_cannot_be_read(app: Path, site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(app / "lazy.py", "RATE = 1")

    def open_(path: Path, mode: str = "r") -> object:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(Path, "open", open_)
    assert digest(app) is None


@pytest.mark.parametrize("limit", ["LIMIT_FILES", "LIMIT_BYTES"])
def test_too_much_of_it(app: Path, site: Path, monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    for number in range(5):
        write(app / f"lazy{number}.py", f"RATE = {number}")
    assert digest(app) is not None
    monkeypatch.setattr(workercode, limit, 4)
    assert digest(app) is None


# The real folders of packages


def test_all_that_this_environment_has_installed_is_in_its_folders_of_packages() -> None:
    there = {each.name for each in importlib.metadata.distributions(path=list(installed.package_folders()))}
    assert {"pytest", "msgpack", "rich"} <= there


def test_a_module_of_python_or_of_a_package_is_installed_and_another_is_not(tmp_path: Path) -> None:
    assert installed.is_installed(Path(os.__file__))
    assert installed.is_installed(Path(pytest.__file__))
    assert not installed.is_installed(tmp_path / "lazy.py")
