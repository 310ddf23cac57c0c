"""A job should become movable without a line of its program changed: nobody rewrites a hundred ETL jobs.

`godwit.pth` calls `hook` at the start of every Python process whose environment names a job. Until pyspark is
imported nothing else happens; then `SparkContext._do_init` is wrapped, and the process that calls it becomes
the job's driver. Its children, and Spark's Python workers, do not.

Everything but the hook itself is imported when it is needed: most Python processes never make a SparkContext.
"""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

from godwit.extractor import ending
from godwit.extractor.errors import GodwitError, UsageError
from godwit.extractor.importhook import after_import
from godwit.extractor.process import die, leave, say

if TYPE_CHECKING:
    from pyspark import SparkConf, SparkContext

    from godwit.extractor.driver import Driver

CONTEXT_MODULE = "pyspark.core.context"
CONNECT_MODULE = "pyspark.sql.connect.session"
RDD_MODULE = "pyspark.core.rdd"
PICKLE_MODULE = "pyspark.cloudpickle.cloudpickle"

EFFECTS = (
    *("foreach", "foreachPartition", "saveAsTextFile", "saveAsPickleFile", "saveAsSequenceFile"),
    *("saveAsHadoopFile", "saveAsNewAPIHadoopFile", "saveAsHadoopDataset", "saveAsNewAPIHadoopDataset"),
)
"""Methods of an RDD that change the world, outside of any query."""

NO_PROGRAMS = ("pyspark.daemon", "pyspark.worker", "find_spark_home.py", "godwit")
"""Python processes with a driver's environment that are no driver: those that Spark starts for itself, and
the command, in a shell that has exported the environment."""


class Guest(Protocol):
    """Who wants a word before, and after, this process makes a SparkContext."""

    def additions(self, given: Mapping[str, str]) -> Mapping[str, str]: ...

    def attach(self, context: "SparkContext") -> None: ...

    def begin_effect(self, name: str) -> None: ...

    def retire(self) -> None: ...


class Activation:
    """Godwit in this process."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = dict(environ)  # as the process was started: the program may change its own
        self._folder = folder_of_now()  # likewise
        self._guest: Guest | None = None

    def wrap_context(self, module: ModuleType) -> None:
        import functools
        import inspect

        real = module.SparkContext._do_init
        signature = inspect.signature(real)

        @functools.wraps(real)
        def do_init(context: "SparkContext", *args: Any, **kwargs: Any) -> None:
            call = signature.bind(context, *args, **kwargs)
            if call.arguments["jsc"] is not None:
                say("this SparkContext was made outside of the program: nothing of it can be moved")
                real(context, *args, **kwargs)
                return
            with errors_in_one_line():
                guest = self._guest = self._guest or self._new_driver(context._gateway)
                call.arguments["conf"] = completed(call.arguments, guest, context._jvm)
            real(*call.args, **call.kwargs)
            with errors_in_one_line():
                guest.attach(context)

        module.SparkContext._do_init = do_init

    def wrap_connect(self, module: ModuleType) -> None:
        """A session of a server elsewhere makes no SparkContext here: nothing to move, but to be said."""
        import functools

        real = module.SparkSession.__init__

        @functools.wraps(real)
        def init(session: Any, *args: Any, **kwargs: Any) -> None:
            if self._guest is None:
                say("the program uses Spark Connect: nothing of it can be moved, a stop loses its queries")
            module.SparkSession.__init__ = real
            real(session, *args, **kwargs)

        module.SparkSession.__init__ = init

    def wrap_rdd(self, module: ModuleType) -> None:
        """What these do is seen by nobody, no gate holds them, and the name of their jobs is not to be relied
        on: where another thread is inside an action, pyspark gives them none."""
        import functools

        def announced(real: Any) -> Any:
            @functools.wraps(real)
            def call(rdd: Any, *args: Any, **kwargs: Any) -> Any:
                if self._guest is not None:
                    self._guest.begin_effect(real.__name__)
                return real(rdd, *args, **kwargs)

            return call

        for name in EFFECTS:
            setattr(module.RDD, name, announced(getattr(module.RDD, name)))

    def wrap_cloudpickle(self, module: Any) -> None:
        """A class of the program itself is sent to the workers under a name that each process draws anew, and
        a function that uses it would never be the same. A number will do: only this process gives them."""
        import itertools
        from types import SimpleNamespace

        numbers = itertools.count()
        module.uuid = SimpleNamespace(uuid4=lambda: SimpleNamespace(hex=f"{next(numbers):032x}"))

    def stand_by(self) -> None:
        """Be warm, wait until the running job has been moved out, and only then let the program begin."""
        from godwit.extractor import jvm, settings, standby

        task = settings.read(self._environ)
        forget_task()
        if sys.argv[:1] == ["-m"]:  # Python looks for the module later, and nobody knows its file before
            raise UsageError("a standby cannot be started with -m", next_step="give the program's file")
        if job := standby.find(task, sys.argv):
            gateway = jvm.launch(job.conf)
            driver = self._new_driver(gateway)
            self._guest = standby.Warming(driver, job.conf)
            context = jvm.new_context()
            standby.rehearse(job, jvm.SparkJvm(gateway))
            say(f"standing by for {task.job}")
            if standby.wait(job):
                self._guest = driver
                driver.attach(context)
                jvm.let_program_replace(context)
                return
        say(f"{task.job} has come to its own end: nothing is left to do")
        leave(0)

    def retire(self) -> None:
        if self._guest is not None:
            self._guest.retire()

    def _new_driver(self, gateway: Any) -> "Driver":
        from godwit.extractor import jvm, settings
        from godwit.extractor.driver import Driver

        task = settings.read(self._environ)
        forget_task()
        program = os.path.join(self._folder, sys.argv[0])
        return Driver(task, *jvm.connect(gateway), [program, *sys.argv[1:]])


def hook() -> None:
    global _activation
    # Python reads a .pth file twice where one of its folders is a link to another.
    if _activation is not None or is_no_program(sys.orig_argv):
        return
    _activation = Activation(os.environ)
    ending.listen()
    after_import(CONTEXT_MODULE, _activation.wrap_context)
    after_import(CONNECT_MODULE, _activation.wrap_connect)
    after_import(RDD_MODULE, _activation.wrap_rdd)
    after_import(PICKLE_MODULE, _activation.wrap_cloudpickle)
    if os.environ.get("GODWIT_STANDBY", "0") not in ("", "0"):
        # Python prints what is raised in a .pth file and goes on: the program would run beside the job.
        with errors_in_one_line(), last_resort("cannot stand by"):
            _activation.stand_by()


_activation: Activation | None = None


def folder_of_now() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:  # somebody has removed it, and perhaps nobody needs it
        return ""


def program_has_answered() -> None:
    """For a program that knows Godwit: from here on it puts out what it has found, and may not be moved."""
    if _activation is not None:
        _activation.retire()


def is_no_program(command: Sequence[str]) -> bool:
    program = command[2:3] if command[1:2] == ["-m"] else command[1:2]
    return any(os.path.basename(word) in NO_PROGRAMS for word in program)


def forget_task() -> None:
    """The children of the driver are no drivers of the same job."""
    for name in ("GODWIT_JOB", "GODWIT_STANDBY"):
        os.environ.pop(name, None)


def completed(arguments: Mapping[str, Any], guest: Guest, jvm: Any) -> "SparkConf":
    """A copy: the program may go on to use its own, which stays as it was."""
    from pyspark import SparkConf

    given: SparkConf | None = arguments["conf"]
    if given is not None and given._jconf is not None:
        conf = SparkConf(_jconf=given._jconf.clone())
    else:
        conf = SparkConf(_jvm=jvm).setAll(given.getAll() if given is not None else [])
    # pyspark itself would put these into the conf, but later.
    if arguments["master"]:
        conf.setMaster(arguments["master"])
    for name, value in (arguments["environment"] or {}).items():
        conf.setExecutorEnv(name, value)
    return conf.setAll(list(guest.additions(dict(conf.getAll())).items()))


@contextmanager
def errors_in_one_line() -> Iterator[None]:
    """For errors of Godwit's users, who do not want to see Godwit's insides."""
    try:
        yield
    except GodwitError as error:
        die(error)


@contextmanager
def last_resort(what: str) -> Iterator[None]:
    try:
        yield
    except GodwitError:
        raise
    except Exception as error:
        say(f"{what}: {type(error).__name__}: {error}".splitlines()[0])
        leave(1)
