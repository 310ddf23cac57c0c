"""What users install is the wheel, not the checkout: it must carry the jar and the switch, no more."""

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from godwit.extractor.scala import jar

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Through the source distribution, as an index would be served."""
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, ROOT)
    (found,) = out.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a fresh environment with the wheel; what it depends on is borrowed from this one."""
    venv = tmp_path_factory.mktemp("venv")
    run(sys.executable, "-m", "venv", venv)
    python = venv / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", wheel)
    (site_packages,) = venv.glob("lib/python*/site-packages")
    (site_packages / "borrowed.pth").write_text(sysconfig.get_path("purelib"))
    return python


def run(*command: object, cwd: Path | None = None, **environment: str) -> str:
    answer = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return answer.stdout.strip()


def test_the_wheel_holds_the_three_rooms_the_jar_and_the_switch(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {"godwit.pth", "godwit/extractor/jars/godwit-spark-4.3.jar"} <= names
    assert {name.split("/")[0] for name in names} == {"godwit", "godwit.pth", "godwit-0.1.0.dist-info"}
    assert {name.split("/")[1] for name in names if name.startswith("godwit/")} == {
        "planrewrite",
        "extractor",
        "orchestrator",
    }
    assert not [name for name in names if name.endswith(".scala")]


def test_every_module_of_the_checkout_is_in_the_wheel(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    for room in ("planrewrite", "extractor", "orchestrator"):
        here = {path.name for path in (ROOT / room).glob("*.py")}
        assert {
            Path(name).name for name in names if name.startswith(f"godwit/{room}/") and name[-3:] == ".py"
        } == here


def test_the_jar_holds_the_classes_under_sparks_own_package(wheel: Path, tmp_path: Path) -> None:
    inside = zipfile.ZipFile(wheel).extract("godwit/extractor/jars/godwit-spark-4.3.jar", tmp_path)
    classes = [name for name in zipfile.ZipFile(inside).namelist() if name.endswith(".class")]
    assert "org/apache/spark/sql/godwit/Agent.class" in classes
    # Four accessors must stand where Spark keeps what they reach (extractor/scala/SparkAccess.scala).
    elsewhere = {name.split("$")[0].removesuffix(".class") for name in classes if "/godwit/" not in name}
    assert elsewhere == {
        "org/apache/spark/sql/execution/BroadcastThreads",
        "org/apache/spark/sql/execution/adaptive/StageAccess",
        "org/apache/spark/sql/execution/joins/Relations",
        "org/apache/spark/sql/execution/columnar/CacheAccess",
    }


def test_the_installed_command_answers(python: Path, tmp_path: Path) -> None:
    assert "migrate" in run(python.with_name("godwit"), "--help", cwd=tmp_path)


def test_a_jobs_own_module_called_extractor_stays_its_own(python: Path, tmp_path: Path) -> None:
    (tmp_path / "extractor.py").write_text("")
    assert run(python, "-c", "import extractor; print(extractor.__file__)", cwd=tmp_path).startswith(
        str(tmp_path)
    )


def test_the_environment_alone_switches_godwit_on(python: Path, tmp_path: Path) -> None:
    where = "import sys; print(getattr(sys.modules.get('godwit.extractor.activate'), '__file__', None))"
    assert run(python, "-c", where, cwd=tmp_path) == "None"
    switched_on = run(python, "-c", where, cwd=tmp_path, GODWIT_JOB="j", GODWIT_STORE="file:///nowhere")
    assert switched_on.startswith(str(python.parents[1]))


def test_sources_that_do_not_compile_leave_no_jar(tmp_path: Path) -> None:
    broken = tmp_path / "Broken.scala"
    broken.write_text("object Broken { val n: Int = missing }")
    with pytest.raises(SystemExit, match="does not compile"):
        jar.build([broken], jar.pyspark_jars(), tmp_path / "out" / "godwit.jar")
    assert not list((tmp_path / "out").iterdir())
