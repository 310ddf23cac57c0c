"""Spark's internals are reached from Scala, but a Python project has no Scala toolchain, and Spark's
internals differ between its minor versions.

pyspark's own jars contain the Scala compiler: that one builds the jar, against the very classes it will
meet at run time. One jar per minor version of Spark: the shared sources beside the ones in
`scala/spark-<minor>/`. Compiling takes seconds, so finished jars are kept outside the checkout, under the
hash of everything that went into them.

    python extractor/scala/jar.py OUT_FOLDER      leaves OUT_FOLDER/godwit-spark-<minor>.jar
"""

import hashlib
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE_FOLDERS = (ROOT / "planrewrite" / "scala", ROOT / "extractor" / "scala")
COMPILER_OPTIONS = ("-deprecation", "-feature", "-unchecked", "-release", "17")


def main(out_folder: Path) -> None:
    version = importlib.metadata.version("pyspark")
    minor = ".".join(version.split(".")[:2])
    found = sources(SOURCE_FOLDERS, minor)
    if not found:
        raise SystemExit(f"no Scala sources for Spark {minor} in {', '.join(map(str, SOURCE_FOLDERS))}")
    cached = cache_folder() / "jars" / digest(found, version) / f"godwit-spark-{minor}.jar"
    if not cached.exists():
        print(f"compiling {len(found)} Scala files for Spark {minor}", flush=True)
        build(found, pyspark_jars(), cached)
    deliver(cached, out_folder / cached.name)


def sources(folders: tuple[Path, ...], minor: str) -> list[Path]:
    return [
        path
        for folder in folders
        for place in (folder, folder / f"spark-{minor}")
        for path in sorted(place.glob("*.scala"))
    ]


def digest(paths: list[Path], spark_version: str) -> str:
    sha = hashlib.sha256(repr((spark_version, COMPILER_OPTIONS)).encode())
    for path in paths:
        content = path.read_bytes()
        sha.update(f"{path.name} {len(content)}\n".encode() + content)
    return sha.hexdigest()[:32]


def cache_folder() -> Path:
    return Path(os.environ.get("GODWIT_CACHE") or Path.home() / ".cache" / "godwit")


def pyspark_jars() -> Path:
    """Found without importing pyspark, which may not be importable while a wheel is being built."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise SystemExit("pyspark is not installed: pip install 'pyspark>=4.3,<4.4'")
    return Path(spec.origin).parent / "jars"


def build(paths: list[Path], spark_jars: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        fresh = Path(folder, target.name)
        compiler = [java(), "-Xss8m", "-cp", f"{spark_jars}/*", "scala.tools.nsc.Main", "-usejavacp"]
        done = subprocess.run([*compiler, *COMPILER_OPTIONS, "-d", str(fresh), *map(str, paths)])
        if done.returncode != 0:
            raise SystemExit("the Scala part does not compile: see the errors above")
        fresh.replace(target)


def java() -> str:
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if found is None:
        raise SystemExit("no java found: install a JDK 17 or newer, or set JAVA_HOME")
    return found


def deliver(jar: Path, target: Path) -> None:
    """By rename, because a running JVM may have the old jar open."""
    if target.exists() and target.read_bytes() == jar.read_bytes():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        Path(shutil.copy(jar, folder)).replace(target)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
