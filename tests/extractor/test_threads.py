import _thread
import queue
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.dummy import Process
from multiprocessing.pool import ThreadPool

import pytest
from pyspark.accumulators import _start_update_server
from pyspark.util import InheritableThread

from godwit.extractor.process import say
from godwit.extractor.threads import Names

WRAPPED: list[tuple[type, str]] = [
    (threading.Thread, "start"),
    (Future, "add_done_callback"),
    (ThreadPoolExecutor, "submit"),
    *((ThreadPool, method) for method in ("apply_async", "_map_async", "imap", "imap_unordered")),
]


@contextmanager
def installed() -> Iterator[Names]:
    with pytest.MonkeyPatch.context() as patched:
        for owner, method in WRAPPED:
            patched.setattr(owner, method, getattr(owner, method))
        names = Names()
        names.install()
        yield names


@pytest.fixture
def names() -> Iterator[Names]:
    with installed() as names:
        yield names


def name_in(thread: Callable[[Callable[[], None]], threading.Thread], names: Names) -> str:
    found: list[str] = []
    started = thread(lambda: found.append(names.here()))
    started.start()
    started.join()
    return found[0]


def sleep_a_little() -> None:
    time.sleep(random.random() / 500)


# Threads


def test_the_main_thread_is_called_0(names: Names) -> None:
    assert (names.here(), names.here_is_sure()) == ("0", True)


def test_a_thread_is_called_after_the_one_that_started_it(names: Names) -> None:
    assert name_in(lambda act: threading.Thread(target=act), names) == "0.1"
    nested: list[str] = []

    def outer() -> None:
        nested.append(names.here())
        nested.extend(name_in(lambda act: threading.Thread(target=act), names) for _ in range(2))

    thread = threading.Thread(target=outer)
    thread.start()
    thread.join()
    assert nested == ["0.2", "0.2.1", "0.2.2"]
    assert names.here() == "0"


def test_a_thread_is_counted_when_it_is_started_not_when_it_is_made_or_runs(names: Names) -> None:
    found: dict[str, str] = {}
    threads = {
        key: threading.Thread(target=lambda key=key: found.update({key: names.here()})) for key in "abc"
    }
    for key in "cab":
        threads[key].start()
    for thread in threads.values():
        thread.join()
    assert found == {"c": "0.1", "a": "0.2", "b": "0.3"}


class Own(threading.Thread):
    def __init__(self, act: Callable[[], None]) -> None:
        super().__init__(daemon=True)
        self._act = act

    def run(self) -> None:
        self._act()


@pytest.mark.parametrize(
    "thread", [Own, lambda act: threading.Timer(0.001, act), lambda act: Process(target=act)]
)
def test_whatever_is_a_thread_has_a_name(
    names: Names, thread: Callable[[Callable[[], None]], threading.Thread]
) -> None:
    assert name_in(thread, names) == "0.1"


def test_pysparks_inheritable_thread_has_a_name(names: Names) -> None:
    assert name_in(InheritableThread, names) == "0.1"


def test_a_thread_that_is_started_twice_counts_once_and_keeps_its_name(names: Names) -> None:
    go, found = threading.Event(), queue.SimpleQueue[str]()
    thread = threading.Thread(target=lambda: (go.wait(), found.put(names.here())))
    thread.start()
    with pytest.raises(RuntimeError, match="only be started once"):
        thread.start()
    go.set()
    assert found.get() == "0.1"
    assert name_in(lambda act: threading.Thread(target=act), names) == "0.2"


def test_a_thread_that_could_not_be_started_keeps_its_name_for_the_next_try(
    names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.append(names.here()))

    def refuse(*args: object, **kwargs: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        for starter in ("_start_new_thread", "_start_joinable_thread"):  # until Python 3.12, and from 3.13 on
            patched.setattr(threading, starter, refuse, raising=False)
        with pytest.raises(RuntimeError, match="can't start"):
            thread.start()
    thread.start()
    thread.join()
    assert found == ["0.1"]


def test_a_thread_class_that_forgot_to_begin_fails_as_ever(names: Names) -> None:
    class Forgetful(threading.Thread):
        def __init__(self) -> None:
            pass

    with pytest.raises(RuntimeError, match="__init__"):
        Forgetful().start()


def test_threads_that_were_there_before_or_come_from_c_have_no_name_that_lasts() -> None:
    go, found = threading.Event(), queue.SimpleQueue[tuple[str, bool]]()

    def tell() -> None:
        go.wait()
        found.put((names.here(), names.here_is_sure()))
        found.put((names.here(), names.here_is_sure()))

    before = threading.Thread(target=tell)
    before.start()
    with installed() as names:
        _thread.start_new_thread(tell, ())
        go.set()
        said = sorted(found.get(timeout=10) for _ in range(4))
        before.join()
        assert said == [("?1", False)] * 2 + [("?2", False)] * 2
        assert name_in(lambda act: threading.Thread(target=act), names) == "0.1"


def test_what_a_thread_without_a_lasting_name_starts_has_none_either(names: Names) -> None:
    found: queue.SimpleQueue[tuple[str, bool]] = queue.SimpleQueue()

    def inner() -> None:
        found.put((names.here(), names.here_is_sure()))

    _thread.start_new_thread(lambda: threading.Thread(target=inner).start(), ())
    assert found.get(timeout=10) == ("?1.1", False)


def test_threads_that_godwit_starts_for_itself_do_not_count(names: Names) -> None:
    say("a line, by a thread that perhaps has to be started")
    names_before = [thread.name for thread in threading.enumerate()]
    own = threading.Thread(target=time.sleep, args=(0,), name="godwit-test")
    own.start()
    own.join()
    assert "godwit-speaker" in names_before
    assert name_in(lambda act: threading.Thread(target=act), names) == "0.1"


def test_threads_that_pyspark_starts_for_itself_do_not_count(names: Names) -> None:
    server = _start_update_server("token", is_unix_domain_sock=False)
    try:
        assert name_in(lambda act: threading.Thread(target=act), names) == "0.1"
    finally:
        server.shutdown()
        server.server_close()


def test_installing_twice_changes_nothing(names: Names) -> None:
    names.install()
    assert [name_in(lambda act: threading.Thread(target=act), names) for _ in range(2)] == ["0.1", "0.2"]
    with ThreadPoolExecutor(1) as pool:
        assert [pool.submit(names.here).result() for _ in range(2)] == ["0.3", "0.4"]


# Executors


def test_a_task_is_called_after_its_giver_whichever_worker_does_it(names: Names) -> None:
    with ThreadPoolExecutor(4) as pool:
        tasks = [pool.submit(lambda: (sleep_a_little(), names.here())[1]) for _ in range(200)]
        assert [task.result() for task in tasks] == [f"0.{number}" for number in range(1, 201)]


def test_starting_a_worker_takes_no_number_from_who_gives_the_task(names: Names) -> None:
    for workers in (1, 3):
        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(lambda _: sleep_a_little(), range(4)))
    assert name_in(lambda act: threading.Thread(target=act), names) == "0.9"


def test_a_task_is_as_sure_as_its_giver_and_a_worker_between_tasks_is_not(names: Names) -> None:
    begun: list[tuple[str, bool]] = []

    def begin() -> None:
        begun.append((names.here(), names.here_is_sure()))

    with ThreadPoolExecutor(1, initializer=begin) as pool:
        assert pool.submit(names.here_is_sure).result()
        assert pool.submit(names.here).result() == "0.2"
    assert begun == [("?1", False)]


def test_what_a_task_leaves_behind_is_nobodys_task(names: Names) -> None:
    go, found = threading.Event(), queue.SimpleQueue[tuple[str, bool]]()

    class Argument:
        def __del__(self) -> None:
            found.put((names.here(), names.here_is_sure()))

    with ThreadPoolExecutor(1) as pool:
        pool.submit(lambda _: go.wait(), Argument())
        go.set()
        assert found.get(timeout=10) == ("?1", False)


def test_a_task_that_fails_gives_its_worker_back(names: Names) -> None:
    with ThreadPoolExecutor(1) as pool:
        with pytest.raises(ZeroDivisionError):
            pool.submit(lambda: 1 / 0).result()
        assert pool.submit(names.here).result() == "0.2"


def test_a_task_is_given_its_arguments_whatever_they_are_called(names: Names) -> None:
    def told(*args: int, **kwargs: int) -> tuple[tuple[int, ...], dict[str, int]]:
        return args, kwargs

    given = {"self": 1, "real": 2, "executor": 3, "fn": 4, "scope": 5, "function": 6}
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(told, 1, 2, **given).result() == ((1, 2), given)
    with ThreadPool(1) as workers:
        assert workers.apply(told, (1, 2), given) == ((1, 2), given)
        assert workers.apply_async(func=told, kwds=given).get() == ((), given)


def test_a_callback_is_called_after_who_added_it_wherever_it_runs(names: Names) -> None:
    found: list[str] = []
    go = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        late = pool.submit(go.wait)
        late.add_done_callback(lambda _: found.append(names.here()))
        go.set()
        late.result()
        early = pool.submit(int)
        early.result()
        pool.submit(int).result()  # the worker has done what it does after a task
        early.add_done_callback(lambda _: found.append(names.here()))
    assert found == ["0.2", "0.5"]
    assert names.here() == "0"


def test_tasks_of_processes_are_left_alone(names: Names) -> None:
    with ProcessPoolExecutor(1) as pool:
        assert pool.submit(abs, -1).result() == 1
    assert name_in(lambda act: threading.Thread(target=act), names) == "0.1"


# ThreadPools


@pytest.mark.parametrize("workers", [1, 4])
def test_the_tasks_of_a_thread_pool_have_names_however_many_workers_there_are(
    names: Names, workers: int
) -> None:
    def told(*_: object) -> str:
        sleep_a_little()
        return names.here()

    with ThreadPool(workers) as pool:
        assert pool.apply(told) == "0.1"
        assert [each.get() for each in [pool.apply_async(told) for _ in range(2)]] == ["0.2", "0.3"]
        assert pool.map(told, "abc") == ["0.4.1", "0.4.2", "0.4.3"]
        assert pool.map(told, iter("ab"), chunksize=2) == ["0.5.1", "0.5.2"]
        assert pool.map_async(told, []).get() == []
        assert pool.starmap(told, [(1, 2), (3, 4)]) == ["0.7.1", "0.7.2"]
        assert list(pool.imap(told, iter("ab"))) == ["0.8.1", "0.8.2"]
        assert list(pool.imap(told, "abcde", 2)) == [f"0.9.{number}" for number in range(1, 6)]
        assert sorted(pool.imap_unordered(told, "abcde", chunksize=2)) == [f"0.10.{n}" for n in range(1, 6)]
    assert name_in(lambda act: threading.Thread(target=act), names) == "0.11"


def test_a_thread_pool_gives_the_answers_and_errors_that_it_gives_without_names(names: Names) -> None:
    def broken() -> Iterator[int]:
        yield 1
        raise KeyError("made on the way")

    with ThreadPool(2) as pool:
        assert pool.map(abs, [-1, -2]) == [1, 2]
        assert pool.starmap(pow, [(2, 3), (3, 2)]) == [8, 9]
        assert list(pool.imap(abs, range(-3, 0))) == [3, 2, 1]
        with pytest.raises(ZeroDivisionError):
            pool.map(lambda each: 1 // each, [1, 0])
        with pytest.raises(TypeError):
            pool.starmap(pow, [1])
        answers = pool.imap(abs, broken())
        assert next(answers) == 1
        with pytest.raises(KeyError):
            next(answers)
        heard: list[object] = []
        pool.map_async(abs, [-1], callback=heard.append).wait(10)
        assert heard == [[1]]


# Two runs


def program(names: Names) -> dict[str, str]:
    """Threads, pools and pools in tasks, each with something to do that takes its time."""
    found: dict[str, str] = {}

    def act(task: str) -> None:
        sleep_a_little()
        found[task] = names.here()
        assert names.here_is_sure()

    def inner_pool(task: str) -> None:
        act(task)
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(act, [f"{task}/{number}" for number in range(5)]))
        thread = threading.Thread(target=act, args=(f"{task}/thread",))
        thread.start()
        thread.join()
        act(f"{task} again")

    def inner_thread_pool(task: str) -> None:
        with ThreadPool(random.randint(1, 4)) as pool:
            pool.map(act, [f"{task}/{number}" for number in range(5)])

    threads = [threading.Thread(target=inner_pool, args=(f"thread {number}",)) for number in range(3)]
    for thread in threads:
        thread.start()
    with ThreadPoolExecutor(random.randint(1, 4)) as pool:
        tasks = [pool.submit(inner_pool, f"task {number}") for number in range(6)]
        tasks += [pool.submit(inner_thread_pool, f"mapped {number}") for number in range(4)]
        for task in tasks:
            task.result()
    for thread in threads:
        thread.join()
    return found


def test_a_program_of_threads_and_nested_pools_has_the_same_names_in_every_run() -> None:
    runs = []
    for _ in range(5):
        with installed() as names:
            runs.append(program(names))
    assert len(runs[0]) == 9 * 8 + 4 * 5
    assert len(set(runs[0].values())) == len(runs[0]) - 9, "each has a name of its own, but those `again`"
    assert all(run == runs[0] for run in runs)
