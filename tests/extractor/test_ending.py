"""Which ends of a program are good ones."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PRELUDE = """\
from godwit.extractor import ending
ending.listen()
import atexit, builtins, sys, threading, time
from sys import exit as leave
def attach():
    main = ending.main_frame()
    atexit.register(lambda: print("well" if ending.ended_well(main) else "badly"))
def nested(code):
    raise SystemExit(code)
def swallowed(call, *args):
    try:
        call(*args)
    except SystemExit as error:
        return error.code
attach()
"""

GOOD = [
    "pass",
    "sys.exit()",
    "sys.exit(0)",
    "raise SystemExit",
    "raise SystemExit(None)",
    "nested(0)",
    "exit()",
    "assert swallowed(sys.exit, 3) == 3",
    "assert swallowed(nested, 'no rows') == 'no rows'",
    "swallowed(nested, 3); sys.exit(0)",
    "try: sys.exit(0)\nexcept SystemExit as error: sys.exit(error)",
    "threading.Thread(target=nested, args=(3,)).start()",
    "import _thread; assert swallowed(_thread.exit) is None",
]
BAD = {
    "raise ValueError": 1,
    "sys.exit(3)": 3,
    "sys.exit('no rows')": 1,
    "leave(4)": 4,
    "exit(5)": 5,
    "quit(6)": 6,
    "raise SystemExit(7)": 7,
    "nested(8)": 8,
    "with open('/dev/null'): raise SystemExit(9)": 9,
    "swallowed(sys.exit, 0); raise ValueError": 1,
    "threading.Thread(target=lambda: (time.sleep(0.3), sys.exit(0))).start(); sys.exit(3)": 3,
}


def run(folder: Path, program: str) -> tuple[int, str]:
    (folder / "program.py").write_text(f"{PRELUDE}{program}\n")
    done = subprocess.run(
        [sys.executable, str(folder / "program.py")], capture_output=True, text=True, timeout=60
    )
    return done.returncode, done.stdout


@pytest.mark.parametrize("program", GOOD)
def test_a_good_end(tmp_path: Path, program: str) -> None:
    assert run(tmp_path, program) == (0, "well\n")


@pytest.mark.parametrize("program", BAD)
def test_a_bad_end_keeps_its_exit_code(tmp_path: Path, program: str) -> None:
    assert run(tmp_path, program) == (BAD[program], "badly\n")


def test_before_the_program_has_begun_there_is_no_main_module_and_its_end_is_known_all_the_same(
    tmp_path: Path,
) -> None:
    (tmp_path / "sitecustomize.py").write_text(PRELUDE)
    (tmp_path / "program.py").write_text("import sys\nsys.exit(int(sys.argv[1])) if sys.argv[1:] else None")
    for words, end in (((), "well\n"), (("0",), "well\n"), (("3",), "badly\n")):
        done = subprocess.run(
            [sys.executable, str(tmp_path / "program.py"), *words],
            env={**os.environ, "PYTHONPATH": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.stdout == end, done.stderr


def test_the_end_of_a_thread_is_as_silent_as_ever(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(f"{PRELUDE}threading.Thread(target=sys.exit).start()\n")
    done = subprocess.run([sys.executable, str(tmp_path / "program.py")], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_noting_exception_is_still_pythons_own(tmp_path: Path) -> None:
    program = "import pickle; assert type(pickle.loads(pickle.dumps(SystemExit(2)))) is SystemExit"
    assert run(tmp_path, program) == (0, "well\n")
