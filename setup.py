"""Two things in the wheel are not Python modules: the Scala part as a jar, and `godwit.pth`, which has to
land in site-packages itself, for it is what switches Godwit on in a program that never imports it."""

import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent


class BuildWithJar(build_py):
    def run(self) -> None:
        super().run()
        # A development install reads the checkout; `make install` puts both things there.
        if not self.editable_mode:
            jars = Path(self.build_lib, "godwit", "extractor", "jars")
            subprocess.run([sys.executable, ROOT / "extractor" / "scala" / "jar.py", jars], check=True)
            shutil.copy(ROOT / "extractor" / "godwit.pth", self.build_lib)


setup(cmdclass={"build_py": BuildWithJar})
