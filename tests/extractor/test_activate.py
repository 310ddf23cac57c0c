"""Everything about becoming a driver that needs no Spark; with Spark it is in tests/spark."""

import atexit
import hashlib
import importlib
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from godwit.extractor import settings, sparkconf, standby, workercode
from godwit.extractor.activate import EFFECTS, Activation, is_no_program
from godwit.extractor.control import ControlClient
from godwit.extractor.driver import Driver
from godwit.extractor.errors import (
    JobAlive,
    MoveFailed,
    OtherProgram,
    OtherVersion,
    StoreUnreadable,
    UnknownJob,
    UsageError,
)
from godwit.extractor.facade import Notice, Report
from godwit.extractor.importhook import after_import
from godwit.extractor.job import JobFolder, JobLease
from godwit.extractor.jvm import find_jar
from godwit.extractor.process import narrate
from godwit.extractor.program import Program, describe
from godwit.extractor.tenure import begin
from godwit.extractor.workercode import Surroundings
from tests.extractor.machine import Machine
from tests.extractor.samples import RUNNING, fragment, manifest, new_job
from tests.planrewrite.graphs import graph_of

PYTHON = [sys.executable, "-I"]


def run(code: str, *args: str) -> subprocess.CompletedProcess[str]:
    """The code in an interpreter of its own."""
    script = textwrap.dedent(code)
    return subprocess.run([*PYTHON, "-c", script, *args], capture_output=True, text=True, timeout=60)


# What a process is given before it begins


PICKLED = """
    import sys
    from godwit.extractor.activate import PICKLE_MODULE, Activation
    from godwit.extractor.importhook import after_import
    if sys.argv[1:] == ["hooked"]:
        after_import(PICKLE_MODULE, Activation({}).wrap_cloudpickle)
    from pyspark import cloudpickle
    class Point: x = 1
    class Other: x = 2
    print(cloudpickle.dumps(lambda: (Point, Other)).hex())
    assert cloudpickle.loads(cloudpickle.dumps(Point)) is Point
"""


def test_a_class_of_the_program_is_called_the_same_by_every_driver() -> None:
    """Functions that use it are told apart by their bytes."""
    told = [run(PICKLED, "hooked").stdout for _ in range(2)]
    assert told[0] == told[1] != ""
    assert run(PICKLED).stdout != run(PICKLED).stdout


# The environment


def test_a_job_and_a_store_are_all_that_is_needed() -> None:
    assert settings.read({"GODWIT_JOB": "etl", "GODWIT_STORE": "file:///s"}) == settings.Settings(
        job="etl",
        store_uri="file:///s",
        stop_after_stages=None,
        grace_seconds=30.0,
        bind="127.0.0.1",
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("GODWIT_STORE", ""),
        ("GODWIT_STOP_AFTER_STAGES", "0"),
        ("GODWIT_STOP_AFTER_STAGES", "two"),
        ("GODWIT_STANDBY", "yes"),
        ("GODWIT_GRACE_SECONDS", "-1"),
        ("GODWIT_GRACE_SECONDS", "nan"),
        ("GODWIT_GRACE_SECONDS", "soon"),
    ],
)
def test_a_setting_that_makes_no_sense_is_named(name: str, value: str) -> None:
    with pytest.raises(UsageError, match=name):
        settings.read({"GODWIT_JOB": "etl", "GODWIT_STORE": "file:///s", name: value})


# Which process becomes a driver


@pytest.mark.parametrize(
    "command",
    [
        ["python3", "-m", "pyspark.daemon", "pyspark.worker"],
        ["python3", "-m", "pyspark.worker"],
        ["python3", "/opt/spark/python/pyspark/find_spark_home.py"],
    ],
)
def test_a_process_that_spark_starts_for_itself_is_no_driver(command: list[str]) -> None:
    assert is_no_program(command)


def test_a_program_is_a_driver_whatever_its_arguments() -> None:
    assert not is_no_program(["python3", "etl.py", "--module", "pyspark.daemon"])
    assert not is_no_program(["python3", "etl.py", "/mnt/godwit"])
    assert not is_no_program(["python3", "-m", "etl", "godwit"])


def test_the_command_is_no_driver_in_a_shell_that_has_exported_the_environment() -> None:
    assert is_no_program(["/opt/venv/bin/python3", "/opt/venv/bin/godwit", "jobs"])
    assert not is_no_program(["/opt/venv/bin/python3", "/opt/jobs/godwit.py"])


def test_a_process_may_begin_in_a_folder_that_is_gone() -> None:
    done = run(
        """
        import os, tempfile
        from godwit.extractor import activate
        folder = tempfile.mkdtemp()
        os.chdir(folder)
        os.rmdir(folder)
        activate.hook()
        """
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_hook_alone_imports_neither_pyspark_nor_the_agent() -> None:
    done = run(
        """
        import sys
        from godwit.extractor import activate
        before = len(sys.meta_path)
        activate.hook()
        activate.hook()
        print(len(sys.meta_path) - before)
        heavy = ("pyspark", "py4j", "msgpack", "http", "godwit.extractor.agent")
        print([name for name in heavy if name in sys.modules])
        """
    )
    assert done.stdout == "4\n[]\n", done.stderr


def test_an_error_in_the_switch_stops_the_process_before_the_program_runs(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "print('the program runs')"],
        env={**os.environ, "GODWIT_JOB": "etl", "GODWIT_STORE": str(tmp_path), "GODWIT_STANDBY": "1"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (67, "")
    assert done.stderr.startswith("godwit: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(("words", "code"), [(["-m", "json.tool", "-h"], 64), (["-c", ""], 66)])
def test_a_standby_is_a_program_in_a_file(tmp_path: Path, words: list[str], code: int) -> None:
    done = subprocess.run(
        [sys.executable, *words],
        env={
            **os.environ,
            "GODWIT_JOB": "etl",
            "GODWIT_STORE": new_job(tmp_path).store.uri,
            "GODWIT_STANDBY": "1",
        },
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == code, done.stderr


def test_an_empty_variable_is_none(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "print('the program runs')"],
        env={**os.environ, "GODWIT_JOB": "etl", "GODWIT_STORE": str(tmp_path), "GODWIT_STANDBY": ""},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (0, "the program runs\n")


# The import hook


def write_module(folder: Path, name: str, text: str) -> None:
    (folder / f"{name}.py").write_text(text)


def test_the_afterthought_comes_once_the_module_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    write_module(tmp_path, "awaited_module", "early = 1\nlate = 2\n")
    seen: list[tuple[ModuleType, int]] = []
    after_import("awaited_module", lambda module: seen.append((module, module.late)))
    assert seen == []
    imported = importlib.import_module("awaited_module")
    assert importlib.import_module("awaited_module") is imported
    assert seen == [(imported, 2)]


def test_the_afterthought_is_for_one_module_of_a_zip_archive_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with zipfile.ZipFile(tmp_path / "both.zip", "w") as archive:
        archive.writestr("zipped_first.py", "import zipped_second")
        archive.writestr("zipped_second.py", "")
    monkeypatch.syspath_prepend(str(tmp_path / "both.zip"))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    seen: list[str] = []
    after_import("zipped_first", lambda module: seen.append(module.__name__))
    importlib.import_module("zipped_first")
    assert seen == ["zipped_first"]


def test_a_module_that_is_not_there_is_missed_as_usual(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    after_import("no_such_module", lambda module: pytest.fail("there is none"))
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("no_such_module")


def test_the_source_of_a_wrapped_module_can_still_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import inspect

    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    write_module(tmp_path, "another_module", "def f():\n    return 1\n")
    after_import("another_module", lambda module: None)
    module = importlib.import_module("another_module")
    assert "return 1" in inspect.getsource(module.f)


def test_a_context_that_spark_made_itself_is_left_alone(capsys: pytest.CaptureFixture[str]) -> None:
    calls: list[str] = []

    class SparkContext:
        def _do_init(self, master: str, conf: object, jsc: object) -> None:
            calls.append(master)

    module = ModuleType("context")
    module.SparkContext = SparkContext  # type: ignore[attr-defined]
    Activation({}).wrap_context(module)
    SparkContext()._do_init("local", None, object())
    assert calls == ["local"]
    assert "made outside of the program" in capsys.readouterr().err


def test_spark_connect_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    made: list[str] = []

    class SparkSession:
        def __init__(self, url: str) -> None:
            made.append(url)

    module = ModuleType("session")
    module.SparkSession = SparkSession  # type: ignore[attr-defined]
    Activation({}).wrap_connect(module)
    SparkSession("sc://one")
    SparkSession("sc://two")
    assert made == ["sc://one", "sc://two"]
    assert capsys.readouterr().err.count("Spark Connect") == 1


# Spark's conf


def test_what_godwit_needs_is_added_to_what_the_program_says() -> None:
    given = {"spark.sql.extensions": "io.delta.Delta", "spark.jars": "/a.jar"}
    assert sparkconf.additions(given, "/godwit.jar", {"spark.sql.pinned": "2"}) == {
        "spark.sql.extensions": f"io.delta.Delta,{sparkconf.EXTENSIONS}",
        "spark.jars": "/a.jar,/godwit.jar",
        "spark.sql.classic.shuffleDependency.fileCleanup.enabled": "false",
        "spark.sql.pinned": "2",
    }


def test_a_conf_that_is_completed_twice_stays_the_same() -> None:
    once = sparkconf.additions({}, "/godwit.jar", {})
    twice = sparkconf.additions(once, "/godwit.jar", {})
    assert {**once, **twice} == once


def test_what_the_program_says_wins_over_the_driver_before() -> None:
    added = sparkconf.additions({"spark.sql.pinned": "8"}, "/godwit.jar", {"spark.sql.pinned": "2"})
    assert "spark.sql.pinned" not in added


def test_neither_machines_nor_secrets_travel() -> None:
    travels = {"spark.sql.shuffle.partitions": "8", "spark.driver.memory": "2g", "spark.executorEnv.A": "1"}
    stays = {
        "spark.master": "local[2]",
        "spark.app.id": "local-1",
        "spark.driver.host": "10.0.0.1",
        "spark.submit.deployMode": "client",
        "spark.kubernetes.driver.pod.name": "etl-driver",
        "spark.hadoop.fs.s3a.secret.key": "x",
        "spark.hadoop.fs.s3a.access.key": "x",
        "spark.ssl.keyPassword": "x",
        "java.home": "/usr",
    }
    assert sparkconf.portable({**travels, **stays}) == travels


def test_an_unknown_spark_is_told_which_ones_are_known(tmp_path: Path) -> None:
    for minor in ("4.2", "4.3"):
        (tmp_path / f"godwit-spark-{minor}.jar").touch()
    assert find_jar(tmp_path, "4.3.7") == tmp_path / "godwit-spark-4.3.jar"
    with pytest.raises(OtherVersion, match=r"Spark 3\.5\.1") as caught:
        find_jar(tmp_path, "3.5.1")
    assert caught.value.next_step == "use Spark 4.2 or 4.3"


# Signals

FORWARDING = """
    import os, signal, sys, time
    from godwit.extractor import sigterm
    jvm = os.fork()
    if jvm == 0:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(42))
        while True: time.sleep(0.05)
    time.sleep(0.3)
    sigterm.pass_on(lambda: jvm)
"""


def test_a_sigterm_is_passed_on_to_the_jvm_and_python_lives() -> None:
    done = run(
        FORWARDING
        + """
    os.kill(os.getpid(), signal.SIGTERM)
    print("JVM:", os.waitstatus_to_exitcode(os.waitpid(jvm, 0)[1]))
    """
    )
    assert done.stdout == "JVM: 42\n", done.stderr


def test_a_sigterm_to_a_fork_of_the_driver_ends_the_fork_alone() -> None:
    done = run(
        FORWARDING
        + """
    worker = os.fork()
    if worker == 0:
        time.sleep(60)
        os._exit(0)
    time.sleep(0.2)
    os.kill(worker, signal.SIGTERM)
    print("worker:", os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1]))
    print("JVM:", os.waitpid(jvm, os.WNOHANG))
    os.kill(jvm, signal.SIGKILL)
    """
    )
    assert done.stdout == "worker: -15\nJVM: (0, 0)\n", done.stderr


def test_without_a_jvm_a_sigterm_ends_the_process() -> None:
    done = run(
        """
        import os, signal, time
        from godwit.extractor import sigterm
        sigterm.pass_on(lambda: None)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)
        """
    )
    assert done.returncode == -signal.SIGTERM


def test_the_programs_own_handler_stays() -> None:
    done = run(
        """
        import os, signal
        from godwit.extractor import sigterm
        signal.signal(signal.SIGTERM, lambda *_: print("mine"))
        sigterm.pass_on(lambda: 1)
        os.kill(os.getpid(), signal.SIGTERM)
        """
    )
    assert (done.stdout, done.returncode) == ("mine\n", 0)
    assert "the program handles SIGTERM itself" in done.stderr


def test_a_context_of_another_thread_cannot_listen_to_python_and_that_is_told() -> None:
    done = run(
        """
        import threading
        from godwit.extractor import sigterm
        thread = threading.Thread(target=sigterm.pass_on, args=(lambda: 1,))
        thread.start()
        thread.join()
        """
    )
    assert "a SIGTERM to this process does not move the job" in done.stderr


# Leaving


def test_leaving_runs_nothing_of_the_program_and_loses_no_output() -> None:
    done = run(
        """
        import atexit, sys, threading
        from godwit.extractor.process import leave
        atexit.register(lambda: print("atexit"))
        sys.stdout.write("written")
        thread = threading.Thread(target=leave, args=(75,))
        try:
            thread.start()
            thread.join()
        finally:
            print("finally")
        """
    )
    assert (done.returncode, done.stdout) == (75, "written")


def test_nobody_reading_does_not_keep_the_process() -> None:
    code = """
    import sys, threading, time
    from godwit.extractor.process import leave
    threading.Thread(target=lambda: sys.stdout.write("x" * 10_000_000), daemon=True).start()
    time.sleep(0.5)
    leave(75)
    """
    process = subprocess.Popen([*PYTHON, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE)
    assert process.wait(10) == 75


def test_a_move_is_narrated_in_lines_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    narrate({"phase": "parking"})
    narrate({"phase": "draining", "seconds": 1.0})
    narrate({"phase": "committed", "seconds": 0.84, "fragments": 3, "bytes": 12_400_000, "recomputed": 1})
    narrate({"phase": "failed", "error": "the store is gone", "next_step": "mount it"})
    assert capsys.readouterr().err == (
        "godwit: moving out: parking the queries\n"
        "godwit: moved out in 0.8 s: 3 fragments, 12.4 MB, 1 stages will run again\n"
        "godwit: not moved, the program goes on: the store is gone; mount it\n"
    )


# A driver's time with the job


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "etl.py"
    path.write_text("print('etl')\n")
    return path


def described(program: Path, *args: str) -> Program:
    code = workercode.sha256(program, workercode.places(program, Surroundings("", ""), {}))
    return describe([str(program), *args], {"pyspark": sys.modules["pyspark"]}, code)


def task(job: JobFolder, **facts: Any) -> settings.Settings:
    return settings.Settings(job=job.name, store_uri=job.store.uri, **facts)


def commit(job: JobFolder, program: Program, **facts: Any) -> None:
    lease = job.acquire()
    facts = {"epoch": lease.epoch, "program": program, **facts}
    lease.commit(manifest(**facts))
    lease.release()


def test_the_first_driver_starts_with_nothing(tmp_path: Path, program: Path) -> None:
    tenure = begin(task(new_job(tmp_path)), [str(program)], None)
    assert (tenure.fragments, tenure.moves, tenure.sql_conf) == ((), 0, {})
    assert tenure.greeting == "etl starts (epoch 1)"


def test_the_next_driver_starts_with_what_the_first_left(tmp_path: Path, program: Path) -> None:
    job = new_job(tmp_path)
    kept, bad = fragment(fingerprint="aa", bytes=12_400_000), fragment(fingerprint="bb")
    commit(job, described(program), fragments=(kept, bad), sql_conf={"spark.sql.pinned": "2"}, moves=3)
    lease = job.acquire()
    lease.mark_bad("bb", "block 3 is missing")
    lease.release()
    tenure = begin(task(job), [str(program)], described(program).code_sha256)
    assert (tenure.fragments, tenure.moves, tenure.sql_conf) == ((kept,), 3, {"spark.sql.pinned": "2"})
    assert tenure.greeting == "resuming etl from epoch 1: 1 fragments, 12.4 MB"


def test_a_job_that_is_alive_has_no_second_driver(tmp_path: Path, program: Path) -> None:
    job = new_job(tmp_path)
    job.acquire()
    with pytest.raises(JobAlive):
        begin(task(job), [str(program)], described(program).code_sha256)


def test_another_program_is_an_error(tmp_path: Path, program: Path) -> None:
    job = new_job(tmp_path)
    commit(job, described(program))
    program.write_text("print('another')\n")
    with pytest.raises(OtherProgram):
        begin(task(job), [str(program)], described(program).code_sha256)


def test_a_changed_module_gives_the_state_up_and_says_so(
    tmp_path: Path, program: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = new_job(tmp_path)
    helpers = replace(RUNNING.program.modules[0], path="helpers.py", sha256="bb")
    (tmp_path / "helpers.py").write_text("changed = True\n")
    commit(job, replace(described(program), modules=(helpers,)))
    assert begin(task(job), [str(program)], described(program).code_sha256).fragments == ()
    assert "helpers" in capsys.readouterr().err


def test_what_failed_moves_left_behind_is_tidied_up(tmp_path: Path, program: Path) -> None:
    job = new_job(tmp_path)
    job.store.put(job.key("blocks/1-deadbeef/0/f0/rows"), b"x")
    begin(task(job), [str(program)], described(program).code_sha256)
    assert job.store.list(job.key("blocks")) == []


# The driver, with a stand-in for the JVM


class Drivers:
    """Makes drivers, and undoes what they have asked of this process."""

    def __init__(self) -> None:
        self.made: list[tuple[Driver, Machine]] = []
        self.left: list[int] = []
        self.end_well = True

    def __call__(self, job: JobFolder, machine: Machine, program: Path, **facts: Any) -> Driver:
        driver = Driver(
            task(job, **facts),
            machine,
            "/godwit.jar",
            [str(program)],
            self.left.append,
            lambda main: self.end_well,
        )
        driver.shape({}, {})  # as before every context
        self.made.append((driver, machine))
        return driver

    def undo(self) -> None:
        for driver, machine in self.made:
            atexit.unregister(driver.end)
            machine.notices.put(None)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


@pytest.fixture
def new_driver() -> Iterator[Drivers]:
    drivers = Drivers()
    yield drivers
    drivers.undo()


def test_a_driver_announces_itself_and_loads_the_state(
    tmp_path: Path, program: Path, new_driver: Drivers
) -> None:
    job, machine = new_job(tmp_path), Machine(graph_of())
    commit(job, described(program), sql_conf={"spark.sql.pinned": "2"})
    driver = new_driver(job, machine, program, stop_after_stages=4, grace_seconds=15)
    added = driver.additions({"spark.sql.shuffle.partitions": "8", "spark.master": "local[2]"})
    driver.attach(object())
    assert added["spark.sql.pinned"] == "2"
    assert machine.started_with == (4, 15_000)
    assert list(machine.loaded) == [job.bulk_uri("blocks/1-1a2b3c4d/f0")]
    running = job.running()
    assert running is not None
    assert (running.epoch, running.pid) == (2, os.getpid())
    assert running.spark_conf == {"spark.sql.shuffle.partitions": "8", **machine.pinned()}


def test_an_address_that_is_not_this_machines_is_told(
    tmp_path: Path, program: Path, new_driver: Drivers
) -> None:
    driver = new_driver(new_job(tmp_path), Machine(graph_of()), program, bind="203.0.113.7")
    with pytest.raises(UsageError, match=r"cannot listen at 203\.0\.113\.7"):
        driver.attach(object())


def test_a_module_is_what_it_was_when_it_was_first_seen(
    tmp_path: Path, program: Path, new_driver: Drivers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is deployed anew between its import and the move; the functions that it made know its name only."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    late = elsewhere / "late_module.py"
    job, machine = new_job(tmp_path), Machine(graph_of())
    monkeypatch.setattr("godwit.extractor.agent.NOTICE_WAIT_MS", 10)
    looked = threading.Event()
    machine.snapshot = lambda: looked.set() or graph_of().to_json()  # type: ignore[method-assign, func-returns-value]
    driver = new_driver(job, machine, program)
    driver.attach(object())
    late.write_text("rate = 1\n")
    monkeypatch.syspath_prepend(str(elsewhere))
    importlib.import_module("late_module")
    for _ in range(2):  # the first may have begun before the import
        looked.clear()
        assert looked.wait(30)
    late.write_text("rate = 2\n")
    running = job.running()
    assert running is not None
    list(ControlClient(running.endpoint, running.token).migrate(30))
    committed = job.committed()
    assert committed is not None
    recorded = {each.name: each.sha256 for each in committed.program.modules}
    assert recorded["late_module"] == hashlib.sha256(b"rate = 1\n").hexdigest()
    del sys.modules["late_module"]


def test_a_module_that_cannot_be_read_does_not_deafen_the_agent(
    tmp_path: Path, program: Path, new_driver: Drivers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("godwit.extractor.agent.NOTICE_WAIT_MS", 10)
    job, machine, looked = new_job(tmp_path), Machine(graph_of()), threading.Event()
    driver = new_driver(job, machine, program)
    driver.attach(object())

    def unreadable(*args: Any) -> None:
        looked.set()
        raise PermissionError("no such right")

    with monkeypatch.context() as broken:
        broken.setattr("godwit.extractor.driver.with_modules", unreadable)
        assert looked.wait(30)
    machine.notices.put(Notice("sigterm", at_ms=int(time.time() * 1000), grace_ms=30_000))
    deadline = time.monotonic() + 30
    while not new_driver.left and time.monotonic() < deadline:
        time.sleep(0.01)
    assert new_driver.left == [75]


def test_a_method_of_an_rdd_that_changes_the_world_says_so_first(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    class RDD:
        pass

    for name in EFFECTS:
        setattr(RDD, name, lambda self, *args, name=name: done.append(f"did {name}"))
        getattr(RDD, name).__name__ = name
    module = ModuleType("rdd")
    module.RDD = RDD  # type: ignore[attr-defined]
    activation = Activation({})
    activation.wrap_rdd(module)
    guest = Listening(done)
    RDD().foreach(print)  # type: ignore[attr-defined]
    activation._guest = guest
    RDD().saveAsTextFile("/x")  # type: ignore[attr-defined]
    assert done == ["did foreach", "begins saveAsTextFile", "did saveAsTextFile"]


class Listening:
    """A guest that only hears what is about to happen."""

    def __init__(self, done: list[str]) -> None:
        self._done = done

    def additions(self, given: Any) -> Any:
        return {}

    def attach(self, context: object) -> None: ...

    def retire(self) -> None: ...

    def begin_effect(self, name: str) -> None:
        self._done.append(f"begins {name}")


def test_a_second_context_gets_the_same_state(tmp_path: Path, program: Path, new_driver: Drivers) -> None:
    job, machine = new_job(tmp_path), Machine(graph_of())
    commit(job, described(program))
    driver = new_driver(job, machine, program)
    driver.additions({})
    driver.attach(object())
    first = job.running()
    machine.loaded = {}
    driver.additions({})
    driver.attach(object())
    assert len(machine.loaded) == 1
    assert job.running() == first


def test_a_module_that_is_loaded_later_belongs_to_the_program(
    tmp_path: Path, program: Path, new_driver: Drivers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    job = new_job(tmp_path)
    new_driver(job, Machine(graph_of()), program).attach(object())
    write_module(tmp_path, "loaded_later", "x = 1\n")
    importlib.import_module("loaded_later")
    running = job.running()
    assert running is not None
    assert list(ControlClient(running.endpoint, running.token).migrate(30))[-1]["phase"] == "left"
    left = job.committed()
    assert left is not None
    assert "loaded_later" in {module.name for module in left.program.modules}
    assert len({module.name for module in left.program.modules}) == len(left.program.modules)


def test_a_program_that_is_deployed_anew_while_it_runs_does_not_get_the_state_of_the_old_one(
    tmp_path: Path, program: Path, new_driver: Drivers
) -> None:
    job, machine = new_job(tmp_path), Machine(graph_of())
    driver = new_driver(job, machine, program)
    driver.attach(object())
    program.write_text("print('another')\n")
    running = job.running()
    assert running is not None
    assert list(ControlClient(running.endpoint, running.token).migrate(30))[-1]["phase"] == "left"
    assert new_driver.left == [75]
    assert machine.ended, "a fork of the program would keep the JVM alive"
    driver.tenure.lease.release()
    with pytest.raises(OtherProgram):
        begin(task(job), [str(program)], described(program).code_sha256)


def test_a_program_that_ends_leaves_no_state(
    tmp_path: Path, program: Path, new_driver: Drivers, capsys: pytest.CaptureFixture[str]
) -> None:
    job, machine = new_job(tmp_path), Machine(graph_of())
    commit(job, described(program), moves=2)
    machine.fallbacks = {fragment().fingerprint: "Exchange: block 3 is missing"}
    driver = new_driver(job, machine, program)
    driver.attach(object())
    driver.end()
    ended = job.ended()
    assert ended is not None
    assert (ended.epoch, ended.moves) == (2, 2)
    assert job.committed() is None
    assert "1 could not be read and were computed anew" in capsys.readouterr().err


def test_state_of_another_jvm_is_not_loaded(tmp_path: Path, program: Path, new_driver: Drivers) -> None:
    """The JVM need not be the one beside pyspark: SPARK_HOME may say otherwise."""
    job, machine = new_job(tmp_path), Machine(replace(graph_of(), spark_version="4.3.1"))
    commit(job, described(program))
    driver = new_driver(job, machine, program)
    with pytest.raises(OtherVersion, match=r"made with Spark 4\.3\.0, this JVM has 4\.3\.1"):
        driver.attach(object())
    assert machine.loaded == {}


def test_a_store_that_java_does_not_find_is_refused_before_anything_runs(
    tmp_path: Path, program: Path, new_driver: Drivers
) -> None:
    """In a locale without its letters, a folder has another name for Java."""
    machine = Machine(graph_of())
    machine.is_blind = True
    with pytest.raises(StoreUnreadable, match="Java does not find the store") as caught:
        new_driver(new_job(tmp_path), machine, program).attach(object())
    assert "LC_ALL" in caught.value.next_step


def test_a_store_that_is_away_for_a_moment_does_not_end_a_program_that_makes_another_context(
    tmp_path: Path, program: Path, new_driver: Drivers
) -> None:
    machine = Machine(graph_of())
    driver = new_driver(new_job(tmp_path), machine, program)
    driver.attach(object())
    machine.is_blind = True
    driver.attach(object())


def test_what_stood_on_a_table_that_proved_bad_is_not_used(tmp_path: Path, program: Path) -> None:
    job = new_job(tmp_path)
    table, above = fragment(fingerprint="aa"), fragment(fingerprint="bb", stands_on=("aa",))
    commit(job, described(program), fragments=(table, above))
    lease = job.acquire()
    lease.mark_bad("aa", "block 3 is missing")
    lease.release()
    assert begin(task(job), [str(program)], described(program).code_sha256).fragments == ()


def test_a_program_whose_accounts_fail_has_ended_all_the_same(
    tmp_path: Path, program: Path, new_driver: Drivers, capsys: pytest.CaptureFixture[str]
) -> None:
    job, machine = new_job(tmp_path), Machine(graph_of())
    commit(job, described(program))
    driver = new_driver(job, machine, program)
    driver.attach(object())

    def report() -> Report:
        raise MoveFailed("Spark says: nothing")

    machine.report = report  # type: ignore[method-assign]
    driver.end()
    assert job.ended() is not None
    assert "Spark says: nothing" in capsys.readouterr().err


def test_a_program_that_fails_leaves_the_state(tmp_path: Path, program: Path, new_driver: Drivers) -> None:
    job, machine = new_job(tmp_path), Machine(graph_of())
    commit(job, described(program))
    machine.fallbacks = {fragment().fingerprint: "Exchange: block 3 is missing"}
    driver = new_driver(job, machine, program)
    driver.attach(object())
    new_driver.end_well = False
    driver.end()
    assert job.ended() is None
    assert job.committed() is not None
    assert job.bad() == {fragment().fingerprint}


def test_a_second_context_does_not_undo_the_account_of_the_first(
    tmp_path: Path, program: Path, new_driver: Drivers, capsys: pytest.CaptureFixture[str]
) -> None:
    job, machine = new_job(tmp_path), Machine(graph_of())
    commit(job, described(program))
    driver = new_driver(job, machine, program)
    driver.attach(object())
    machine.fallbacks = {fragment().fingerprint: "Exchange: block 3 is missing"}
    driver.attach(object())
    assert machine.loaded == {}, "what is lost once is not tried again"
    machine.fallbacks = {}
    driver.end()
    assert "1 could not be read and were computed anew" in capsys.readouterr().err


def test_a_fork_of_the_driver_does_not_end_the_job(
    tmp_path: Path, program: Path, new_driver: Drivers
) -> None:
    job = new_job(tmp_path)
    driver = new_driver(job, Machine(graph_of()), program)
    driver.attach(object())
    child = os.fork()
    if child == 0:
        driver.end()
        os._exit(0)
    os.waitpid(child, 0)
    assert job.ended() is None


# Standing by


class Elsewhere:
    """The running job, in another process as far as the standby can tell."""

    def __init__(self, job: JobFolder, program: Program) -> None:
        self.job = job
        self.program = program
        self.lease: JobLease = job.acquire()
        self.lease.announce(replace(RUNNING, epoch=self.lease.epoch, program=program))

    def move_out(self) -> None:
        self.lease.commit(manifest(epoch=self.lease.epoch, program=self.program))
        self.lease.release()

    def end(self) -> None:
        self.lease.end(ended_at=1.0, moves=0)
        self.lease.release()


def awaited(job: JobFolder, program: Path) -> standby.Awaited:
    found = standby.find(task(job), [str(program)])
    assert found is not None
    return found


def test_a_standby_takes_over_the_conf_of_the_running_job(tmp_path: Path, program: Path) -> None:
    job = new_job(tmp_path)
    Elsewhere(job, described(program))
    assert awaited(job, program).conf == RUNNING.spark_conf


def test_a_standby_waits_until_the_job_is_moved_out_and_gone(tmp_path: Path, program: Path) -> None:
    job = new_job(tmp_path)
    elsewhere = Elsewhere(job, described(program))
    looks: list[float] = []

    def sleep(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 3:
            elsewhere.move_out()

    assert standby.wait(awaited(job, program), sleep)
    assert len(looks) == 3


def test_a_job_that_has_been_moved_out_is_not_waited_for(tmp_path: Path, program: Path) -> None:
    job = new_job(tmp_path)
    Elsewhere(job, described(program)).move_out()
    assert standby.wait(awaited(job, program), lambda seconds: pytest.fail("waited"))


def test_a_standby_is_not_needed_when_the_job_ends_by_itself(tmp_path: Path, program: Path) -> None:
    job = new_job(tmp_path)
    elsewhere = Elsewhere(job, described(program))
    assert not standby.wait(awaited(job, program), lambda seconds: elsewhere.end())
    assert standby.find(task(job), [str(program)]) is None


def test_a_standby_does_not_repeat_a_job_that_died(tmp_path: Path, program: Path) -> None:
    job = new_job(tmp_path)
    commit(job, described(program))  # epoch 1 was moved out; epoch 2 resumed, and is killed
    elsewhere = Elsewhere(job, described(program))
    with pytest.raises(MoveFailed, match="died"):
        standby.wait(awaited(job, program), lambda seconds: elsewhere.lease.release())


def test_a_standby_does_not_repeat_a_job_that_another_standby_has_taken_over(
    tmp_path: Path, program: Path
) -> None:
    job = new_job(tmp_path)
    elsewhere = Elsewhere(job, described(program))
    waiting = awaited(job, program)
    elsewhere.move_out()
    another = Elsewhere(job, described(program))
    with pytest.raises(MoveFailed, match="died"):
        standby.wait(waiting, lambda seconds: another.lease.release())


def test_there_is_nothing_to_stand_by_for_without_a_job(tmp_path: Path, program: Path) -> None:
    job = new_job(tmp_path)
    with pytest.raises(UnknownJob):
        standby.find(task(job), [str(program)])


def test_a_standby_for_another_program_is_told_before_it_waits(tmp_path: Path, program: Path) -> None:
    job = new_job(tmp_path)
    Elsewhere(job, described(program, "--day", "1"))
    with pytest.raises(OtherProgram):
        standby.find(task(job), [str(program), "--day", "2"])


class Rehearsing:
    """A JVM that can only rehearse."""

    def __init__(self, play: Callable[[], object] = lambda: None) -> None:
        self.folders: list[str] = []
        self.stopped = threading.Event()
        self._play = play

    def rehearse(self, base_uri: str) -> None:
        self.folders.append(base_uri)
        self._play()

    def stop_rehearsal(self) -> None:
        self.stopped.set()


def test_a_standby_rehearses_in_the_store_of_the_job(tmp_path: Path, program: Path) -> None:
    job = new_job(tmp_path)
    Elsewhere(job, described(program))
    stage = Rehearsing()
    standby.rehearse(awaited(job, program), stage)
    assert stage.folders[0].startswith(job.bulk_uri("blocks"))
    assert not stage.stopped.is_set()


def test_a_job_that_has_been_moved_out_does_not_wait_for_a_rehearsal(tmp_path: Path, program: Path) -> None:
    job = new_job(tmp_path)
    Elsewhere(job, described(program)).move_out()
    stage = Rehearsing()
    standby.rehearse(awaited(job, program), stage)
    assert stage.folders == []


def test_a_rehearsal_is_stopped_when_the_job_has_been_moved_out(tmp_path: Path, program: Path) -> None:
    job = new_job(tmp_path)
    elsewhere = Elsewhere(job, described(program))
    stage = Rehearsing(lambda: (elsewhere.move_out(), stage.stopped.wait(30)))
    standby.rehearse(awaited(job, program), stage)
    assert stage.stopped.is_set()


def test_a_standby_that_cannot_rehearse_stands_by_all_the_same(
    tmp_path: Path, program: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = new_job(tmp_path)
    Elsewhere(job, described(program))

    def no_space() -> None:
        raise MoveFailed("Spark says: No space left on device")

    standby.rehearse(awaited(job, program), Rehearsing(no_space))
    assert "No space left on device; the standby is less warm" in capsys.readouterr().err
