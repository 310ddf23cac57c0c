"""One jar per minor version of Spark, and a stale jar is worse than none: its cache must know its sources."""

from pathlib import Path

from godwit.extractor.scala import jar


def scala(folder: Path, name: str, text: str = "object A") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_a_version_takes_the_shared_sources_and_its_own(tmp_path: Path) -> None:
    shared, own = scala(tmp_path, "A.scala"), scala(tmp_path, "spark-4.3/Shim.scala")
    scala(tmp_path, "spark-4.2/Shim.scala")
    scala(tmp_path, "notes.md")
    assert jar.sources((tmp_path, tmp_path / "absent"), "4.3") == [shared, own]


def test_the_digest_follows_content_name_and_spark_version(tmp_path: Path) -> None:
    first = scala(tmp_path, "A.scala")
    digest = jar.digest([first], "4.3.0")
    assert jar.digest([first], "4.3.1") != digest
    assert jar.digest([scala(tmp_path, "B.scala")], "4.3.0") != digest
    assert jar.digest([scala(tmp_path, "A.scala", "object B")], "4.3.0") != digest
    assert jar.digest([scala(tmp_path, "A.scala")], "4.3.0") == digest


def test_text_moved_between_files_changes_the_digest(tmp_path: Path) -> None:
    split = [scala(tmp_path, "A.scala", "object A;"), scala(tmp_path, "B.scala", "object B")]
    before = jar.digest(split, "4.3.0")
    moved = [scala(tmp_path, "A.scala", "object A;object B"), scala(tmp_path, "B.scala", "")]
    assert jar.digest(moved, "4.3.0") != before


def test_a_delivered_jar_is_left_alone_until_it_differs(tmp_path: Path) -> None:
    built = scala(tmp_path, "built.jar", "one")
    target = tmp_path / "jars" / "out.jar"
    jar.deliver(built, target)
    first = target.stat().st_ino
    jar.deliver(built, target)
    assert target.stat().st_ino == first
    built.write_text("two")
    jar.deliver(built, target)
    assert target.read_text() == "two"
