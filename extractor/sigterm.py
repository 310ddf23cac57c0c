"""A machine that goes away says so with SIGTERM, and whom it tells depends on who started whom.

Under `spark-submit` the JVM is asked, under plain `python` it is Python. The JVM takes the signal as a notice
in either case, so Python passes its own on. A program that handles SIGTERM itself is left alone, before or
after: then its handler wins, and decides what the signal means.
"""

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType

from godwit.extractor.process import say


def pass_on(living_jvm: Callable[[], int | None]) -> None:
    """`living_jvm` gives the process to tell; None if it is gone."""
    if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        say("the program handles SIGTERM itself: in this process it does not move the job")
        return
    if threading.current_thread() is not threading.main_thread():
        say("the SparkContext has a thread of its own: a SIGTERM to this process does not move the job")
        return
    driver = os.getpid()

    def handle(number: int, frame: FrameType | None) -> None:
        jvm = living_jvm() if os.getpid() == driver else None
        if jvm is not None:
            os.kill(jvm, number)
        else:
            # A fork of the driver, or a driver without Spark: what would have happened without Godwit.
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    signal.signal(signal.SIGTERM, handle)
