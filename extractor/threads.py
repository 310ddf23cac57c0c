"""An action of the program is found again by its thread and its number there, but neither the numbers nor
the names that Python gives to threads are the same in the next driver: they depend on who came first.

So a thread is named by who started it: `0` is the main thread, `0.2` the second that it started. A task that
is given to a pool counts like a thread that the giver started, whichever worker does it, and so does a
callback of a future. A map of a `ThreadPool` counts once, and its tasks within it: `0.3.1`, `0.3.2`.

What Python, py4j, PySpark and Godwit start for themselves does not count, for it depends on cores and on
moments. Whatever runs in such a thread, or in one that was there before `install`, or that C has started, has
a name for this driver only, and `here_is_sure` says so. A pool's worker is such a thread between its tasks:
its initializer is nobody's task, nor are the callbacks of a `ThreadPool`.

What a thread does by turns is not seen here: tasks of asyncio are one thread.
"""

import concurrent.futures
import functools
import itertools
import multiprocessing.pool
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

MAIN = "0"

MACHINERY = (
    *("godwit.", "py4j.", "pyspark.accumulators."),
    *("multiprocessing.pool.worker", "multiprocessing.pool.Pool._handle_"),
    *("multiprocessing.queues.Queue._feed", "concurrent.futures.process._ExecutorManagerThread."),
)
"""How the full names begin of what runs in threads that the program did not ask for."""


MAPSTAR: Callable[..., Any] = vars(multiprocessing.pool)["mapstar"]
STARMAPSTAR: Callable[..., Any] = vars(multiprocessing.pool)["starmapstar"]
"""How a chunk of a map is done: a function of each item, or of what is in each item."""


class _Scope:
    """What a thread, or a worker while it does a task, is called, and how many it has started."""

    def __init__(self, name: str, is_sure: bool) -> None:
        self.name = name
        self.is_sure = is_sure
        self._started = itertools.count(1)

    def child(self) -> "_Scope":
        return self.part(next(self._started))

    def part(self, number: int) -> "_Scope":
        return _Scope(f"{self.name}.{number}", self.is_sure)


_instances = itertools.count(1)


class Names:
    """The names of this process's threads, from `install` on."""

    def __init__(self) -> None:
        self._attribute = f"_godwit_scope_{next(_instances)}"  # of Thread objects
        self._unknown = itertools.count(1)
        self._submitting = threading.local()
        self._is_installed = False

    def here(self) -> str:
        """What the current thread, or the task that it does, is called."""
        return self._scope().name

    def here_is_sure(self) -> bool:
        """Whether it is called the same in every driver."""
        return self._scope().is_sure

    def install(self) -> None:
        if self._is_installed:
            return
        self._is_installed = True
        self._wrap(threading.Thread, "start", self._start)
        self._wrap(concurrent.futures.Future, "add_done_callback", self._add_done_callback)
        self._wrap(concurrent.futures.ThreadPoolExecutor, "submit", self._submit)
        # Not those of the class above, whose tasks go to other processes.
        self._wrap(multiprocessing.pool.ThreadPool, "apply_async", self._apply_async)
        self._wrap(multiprocessing.pool.ThreadPool, "_map_async", self._map_async)
        self._wrap(multiprocessing.pool.ThreadPool, "imap", self._imap)
        self._wrap(multiprocessing.pool.ThreadPool, "imap_unordered", self._imap)

    def _wrap(self, owner: type, method: str, around: Callable[..., Any]) -> None:
        real = getattr(owner, method)

        @functools.wraps(real)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            return around(real, *args, **kwargs)

        setattr(owner, method, wrapped)

    def _scope(self) -> _Scope:
        thread = threading.current_thread()
        scope: _Scope | None = vars(thread).get(self._attribute)
        if scope is None:
            scope = vars(thread)[self._attribute] = self._first_met(thread)
        return scope

    def _first_met(self, thread: threading.Thread) -> _Scope:
        if thread is threading.main_thread():
            return _Scope(MAIN, is_sure=True)
        return _Scope(f"?{next(self._unknown)}", is_sure=False)

    def _start(self, real: Callable[..., Any], /, thread: threading.Thread) -> None:
        # A thread that has a name was started before: this fails, or did so for want of resources.
        if self._attribute not in vars(thread) and self._is_counted(thread):
            vars(thread)[self._attribute] = self._scope().child()
        real(thread)

    def _is_counted(self, thread: threading.Thread) -> bool:
        # Whether there is a worker to be started depends on whether another one has finished yet.
        if getattr(self._submitting, "now", False):
            return False
        name: str = getattr(thread, "_name", "")  # the property fails where a subclass has forgotten to begin
        return not (name.startswith("godwit-") or _code_of(thread).startswith(MACHINERY))

    def _add_done_callback(self, real: Callable[..., Any], /, future: object, fn: Callable[..., Any]) -> Any:
        # It runs in the worker, or where it is added if the future is done by then.
        return real(future, self._named(fn))

    def _submit(
        self, real: Callable[..., Any], executor: object, fn: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Any:
        task = self._named(fn)
        self._submitting.now = True
        try:
            return real(executor, task, *args, **kwargs)
        finally:
            self._submitting.now = False

    def _apply_async(
        self, real: Callable[..., Any], /, pool: object, func: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        return real(pool, self._named(func), *args, **kwargs)

    def _map_async(
        self,
        real: Callable[..., Any],
        /,
        pool: object,
        func: Callable[..., Any],
        iterable: Iterable[Any],
        mapper: Callable[..., Any],
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        if mapper is STARMAPSTAR:
            func = functools.partial(_call_with_all, func)
        items = iterable if hasattr(iterable, "__len__") else list(iterable)
        return real(pool, _call, _Tasks(self, func, items), MAPSTAR, *args, **kwargs)

    def _imap(
        self,
        real: Callable[..., Any],
        /,
        pool: object,
        func: Callable[..., Any],
        iterable: Iterable[Any],
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        return real(pool, _call, _Tasks(self, func, iterable), *args, **kwargs)

    def _named(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function as a task of its own, given by the current thread."""
        return functools.partial(self._run, self._scope().child(), function)

    def _run(self, scope: _Scope, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        facts = vars(threading.current_thread())
        before = facts.get(self._attribute)
        facts[self._attribute] = scope
        try:
            return function(*args, **kwargs)
        finally:
            if before is None:
                del facts[self._attribute]
            else:
                facts[self._attribute] = before


class _Tasks:
    """The items of a map as tasks that only have to be called. A pool takes them one by one, in a thread of
    its own, so what the items do while they are made is done there, as ever.
    """

    def __init__(self, names: Names, function: Callable[..., Any], items: Any) -> None:
        self._run = names._run
        self._map = names._scope().child()
        self._function = function
        self._items = items

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Callable[[], Any]]:
        for number, item in enumerate(self._items, start=1):
            yield functools.partial(self._run, self._map.part(number), self._function, item)


def _call(task: Callable[[], Any]) -> Any:
    return task()


def _call_with_all(function: Callable[..., Any], items: Iterable[Any]) -> Any:
    return function(*items)


def _code_of(thread: threading.Thread) -> str:
    """The full name of what a thread will run."""
    run = type(thread).run
    code = getattr(thread, "_target", None) if run is threading.Thread.run else run
    owner = getattr(code, "__self__", None)
    if owner is None:
        return f"{getattr(code, '__module__', '')}.{getattr(code, '__qualname__', '')}"
    kind = owner if isinstance(owner, type) else type(owner)
    return f"{kind.__module__}.{kind.__qualname__}.{getattr(code, '__name__', '')}"
