"""State is kept for a program that failed and forgotten for one that ended well. Which it was, nobody tells:
when Python runs its exit handlers, the exit code is out of reach.

So two things are looked at. The program's main module has run to its last line, or it was left by an
exception. And of that exception the code: every SystemExit notes the one it was made with, by whatever name
it was raised.
"""

import _thread
import builtins
import sys
import threading
from types import FrameType
from typing import Any, NoReturn

_codes: list[object] = []
"""Of the last SystemExit that was made; empty if none was."""


def listen() -> None:
    """At the very start of a process, so that nothing holds the real ones."""
    real = builtins.SystemExit

    class SystemExit(real):  # type: ignore[valid-type, misc]
        """Python's own, but for the note that it takes."""

        __module__ = real.__module__
        __qualname__ = real.__qualname__

        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            if threading.current_thread() is threading.main_thread():  # elsewhere it ends a thread only
                _codes[:] = [self.code]

    def exit(status: object = None, /) -> NoReturn:
        if isinstance(status, real):
            raise status
        raise SystemExit(*() if status is None else (status,))

    aloud = threading.excepthook

    def excepthook(args: Any, /) -> None:
        # Python knows its own by identity, and says nothing of it.
        if not issubclass(args.exc_type, real):
            aloud(args)

    exit.__doc__ = sys.exit.__doc__
    builtins.SystemExit = SystemExit  # type: ignore[misc]
    sys.exit = exit
    # Python's own raises the real one, which an `except SystemExit` would no longer catch.
    _thread.exit = _thread.exit_thread = lambda: exit()
    threading.excepthook = excepthook


def main_frame() -> FrameType | None:
    """The frame of the program's main module; None before the program has begun."""
    frame: FrameType | None = sys._current_frames().get(threading.main_thread().ident or 0)
    main = vars(sys.modules["__main__"])
    while frame is not None and not (frame.f_code.co_name == "<module>" and frame.f_globals is main):
        frame = frame.f_back
    return frame


def ended_well(main: FrameType | None) -> bool:
    """In an exit handler: whether the program came to a good end."""
    if hasattr(sys, "last_value"):  # set where Python prints an exception that nobody has handled
        return False
    if main is not None and _returned(main):
        return True
    return all(code in (None, 0) for code in _codes)


def _returned(frame: FrameType) -> bool:
    import dis

    return any(
        each.offset == frame.f_lasti and each.opname.startswith("RETURN")
        for each in dis.get_instructions(frame.f_code)
    )
