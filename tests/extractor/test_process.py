"""What Godwit says in the program's process must not hold it."""

import subprocess
import sys

import pytest

MUCH = """
from godwit.extractor.process import die, leave, say
from godwit.extractor.errors import MoveFailed
for _ in range(200):
    say("x" * 1000)
"""


@pytest.mark.parametrize(("end", "code"), [("leave(7)", 7), ("die(MoveFailed('no'))", 72), ("pass", 0)])
def test_a_reader_that_has_stopped_reading_holds_nobody(end: str, code: int) -> None:
    with subprocess.Popen([sys.executable, "-c", MUCH + end], stderr=subprocess.PIPE) as speaking:
        assert speaking.wait(60) == code


def test_lines_stand_where_they_were_said() -> None:
    text = "from godwit.extractor.process import say; import sys\n" + "\n".join(
        f"say('{number}'); print('program', file=sys.stderr)" for number in range(50)
    )
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True)
    assert done.stderr.splitlines() == [line for n in range(50) for line in (f"godwit: {n}", "program")]


def test_a_fork_speaks_for_itself() -> None:
    text = "from godwit.extractor.process import say; import os\nsay('parent')\n"
    text += "if os.fork() == 0: say('child')\nelse: os.wait()\n"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60)
    assert done.stderr.splitlines() == ["godwit: parent", "godwit: child"]
