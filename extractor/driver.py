"""A process becomes the driver of a job when it makes its SparkContext, and stops being one when it ends.

Before the context exists, the job's lock is taken, the state that an earlier driver left is checked against
this program, and Spark's conf is completed. Once it exists, the state is loaded and the agent starts; a
program that stops its context and makes another is attached again. At the program's own end nothing is left
to resume, and the state goes; if it ends by an error, or with an exit code, the state stays.
"""

import atexit
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from types import FrameType

from godwit.extractor import ending, sigterm, sparkconf, workercode
from godwit.extractor.agent import Agent
from godwit.extractor.control import ControlServer
from godwit.extractor.decide import sound
from godwit.extractor.errors import GodwitError, MoveFailed, OtherVersion, StoreUnreadable, UsageError
from godwit.extractor.facade import Jvm, JvmGone, Report
from godwit.extractor.job import Running
from godwit.extractor.manifest import Fragment, Manifest
from godwit.extractor.process import leave, narrate, one_line, say
from godwit.extractor.program import Program, describe, with_modules
from godwit.extractor.settings import Settings
from godwit.extractor.store import MARKER
from godwit.extractor.tenure import Tenure, begin
from godwit.planrewrite.select import StateSelection
from godwit.planrewrite.stagegraph import StageGraph

WHY_NONE = "files, settings or environment are not those that made them, or the program took another way"


class Driver:
    def __init__(
        self,
        settings: Settings,
        jvm: Jvm,
        jar: str,
        argv: Sequence[str],
        leave: Callable[[int], None] = leave,
        ended_well: Callable[[FrameType | None], bool] = ending.ended_well,
    ) -> None:
        self._settings = settings
        self._jvm = jvm
        self._jar = jar
        self._argv = tuple(argv)  # as it was: programs eat theirs
        self._leave = leave
        self._ended_well = ended_well
        self._pid = os.getpid()
        self._spark_conf: Mapping[str, str] = {}
        self._agent: Agent | None = None
        self._described: Program | None = None
        self._code_sha256: str | None = None
        self._describing = threading.Lock()
        self._seen: set[str] = set()  # modules that are in it
        self._main: FrameType | None = None
        self._before = Report({}, {})  # of contexts that the program has stopped

    @cached_property
    def tenure(self) -> Tenure:
        """Asked for, the job becomes this driver's, and nobody else's until its process ends."""
        return begin(self._settings, self._argv, self._code_sha256)

    @cached_property
    def _loaded(self) -> dict[str, Fragment]:
        """What was resumed from, less what proved to be lost."""
        return {fragment.fingerprint: fragment for fragment in self.tenure.fragments}

    def additions(self, given: Mapping[str, str]) -> Mapping[str, str]:
        """What the context needs beside the program's conf."""
        self._look_at_code(given)
        return self.shape(given, self.tenure.sql_conf)

    def shape(self, given: Mapping[str, str], carried: Mapping[str, str]) -> Mapping[str, str]:
        self._look_at_code(given)
        self._spark_conf = sparkconf.portable(given)
        if sparkconf.is_connect_server(given):
            say("queries of Spark Connect sessions cannot be resumed: a move runs the program again")
        return sparkconf.additions(given, self._jar, carried)

    def attach(self, context: object) -> None:
        """The context is there: load the state into it, and serve."""
        tenure = self.tenure
        if self._agent is not None:
            self._before = self._whole_report()
            held = [each for each in self._loaded.values() if each.fingerprint not in self._before.fallbacks]
            for fingerprint in self._loaded.keys() - {each.fingerprint for each in sound(held)}:
                del self._loaded[fingerprint]
        self._jvm.start(context, self._settings.stop_after_stages, int(self._settings.grace_seconds * 1000))
        self._check_version(tenure)
        self._jvm.load({tenure.job.bulk_uri(each.folder): each for each in self._loaded.values()})
        if self._agent is None:
            self._check_store(tenure)
            self._agent = self._new_agent(tenure)
            self._announce(tenure, self._agent)
            threading.Thread(target=self._agent.serve, name="godwit-agent", daemon=True).start()
            sigterm.pass_on(self._jvm.living_process)
            atexit.register(self.end)
            self._main = ending.main_frame()
            say(tenure.greeting)
            if why := self._program().unknowable:
                say(f"{why}: after a move it starts from its beginning")

    def _check_version(self, tenure: Tenure) -> None:
        """Blocks and fingerprints are those of one Spark, and the JVM need not be the one beside pyspark."""
        now = StageGraph.from_json(self._jvm.snapshot()).spark_version if tenure.left else None
        if tenure.left and tenure.left.spark_version != now:
            raise OtherVersion(
                f"the state was made with Spark {tenure.left.spark_version}, this JVM has {now}"
            )

    def _check_store(self, tenure: Tenure) -> None:
        """A path has other bytes for Java where its locale has no such letters."""
        store = tenure.job.store
        if not self._jvm.sees(store.bulk_uri(MARKER)):
            raise StoreUnreadable(
                f"Java does not find the store {store.uri}, which Python does",
                next_step="set a locale of UTF-8, such as LC_ALL=C.UTF-8",
            )

    def end(self) -> None:
        """The process is about to end, by its own will."""
        if self._agent is None or os.getpid() != self._pid:
            return  # a fork of the driver is not the driver
        self._agent.retire()
        for step in (self._settle_accounts, self._record_end):
            try:
                step(self.tenure)
            except GodwitError as error:
                say(one_line(error))

    def begin_effect(self, name: str) -> None:
        """The program is about to change the world by a Spark job that no query holds."""
        with suppress(JvmGone):  # then the job itself will say so
            self._jvm.begin_effect(name)

    def retire(self) -> None:
        """The program puts out its answer: half of it must not be left behind, and the whole given again."""
        if self._agent is not None:
            self._agent.retire()

    def _new_agent(self, tenure: Tenure) -> Agent:
        return Agent(
            self._jvm,
            tenure.lease,
            loaded=self._loaded,
            manifest=self._manifest,
            moves=tenure.moves,
            narrate=narrate,
            leave=self._leave_with_jvm,
            look_around=self._note_modules,
        )

    def _leave_with_jvm(self, exit_code: int) -> None:
        with suppress(JvmGone, MoveFailed):
            self._jvm.end()
        self._leave(exit_code)

    def _manifest(
        self, graph: StageGraph, selection: StateSelection, fragments: tuple[Fragment, ...]
    ) -> Manifest:
        return Manifest(
            job=self._settings.job,
            epoch=self.tenure.lease.epoch,
            moves=self.tenure.moves + 1,
            written_at=time.time(),
            spark_version=graph.spark_version,
            program=self._program(),
            sql_conf=self._jvm.pinned(),
            snapshot=graph.to_json(),
            selection=selection,
            fragments=fragments,
        )

    def _announce(self, tenure: Tenure, agent: Agent) -> None:
        token, bind = secrets.token_urlsafe(32), self._settings.bind
        try:
            server = ControlServer(agent, bind, token)
        except OSError as error:
            raise UsageError(
                f"cannot listen at {bind}: {error.strerror}",
                next_step="set GODWIT_BIND to an address of this machine, or unset it",
            ) from error
        tenure.lease.announce(
            Running(
                epoch=tenure.lease.epoch,
                pid=self._pid,
                host=socket.gethostname(),
                endpoint=server.endpoint,
                token=token,
                started_at=time.time(),
                program=self._program(),
                spark_conf={**self._spark_conf, **self._jvm.pinned()},
            )
        )

    def _look_at_code(self, given: Mapping[str, str]) -> None:
        if self._code_sha256 is None:
            program = Path(os.path.abspath(self._argv[0]))
            places = workercode.places(program, self._jvm.surroundings(), given)
            self._code_sha256 = workercode.sha256(program, places)

    def _program(self) -> Program:
        """What was looked at once is not looked at again: the code that runs is the code that was there when
        it was loaded, whatever was deployed since. And a move has no time to look at everything."""
        with self._describing:
            fresh = {name: module for name, module in list(sys.modules.items()) if name not in self._seen}
            if self._described is None:
                self._described = describe(self._argv, fresh, self._code_sha256)
            else:
                self._described = with_modules(self._described, fresh)
            self._seen.update(fresh)
            return self._described

    def _note_modules(self) -> None:
        """As they are now: by the time of a move another version may have been deployed."""
        with suppress(OSError):  # a move will meet it too, and tell
            self._program()

    def _whole_report(self) -> Report:
        """Of all contexts that the program has had."""
        try:
            now = self._jvm.report()
        except JvmGone:
            return self._before  # a program may end its JVM first; only the account is lost
        before = self._before
        return Report({**before.used, **now.used}, {**before.fallbacks, **now.fallbacks})

    def _record_end(self, tenure: Tenure) -> None:
        if self._ended_well(self._main):
            tenure.lease.end(ended_at=time.time(), moves=tenure.moves)
        elif tenure.fragments:
            say("the program failed; what is stored stays for its next run")

    def _settle_accounts(self, tenure: Tenure) -> None:
        """What became of the state that was resumed from."""
        if not tenure.fragments:
            return
        report = self._whole_report()
        for fingerprint, reason in report.fallbacks.items():
            tenure.lease.mark_bad(fingerprint, reason)
        used, lost = len(report.used.keys() - report.fallbacks.keys()), len(report.fallbacks)
        say(
            f"of {len(tenure.fragments)} stored fragments {used} were used, {lost} could not be read "
            f"and were computed anew, {len(tenure.fragments) - used - lost} met no stage that ran"
            + (f" ({WHY_NONE})" if used + lost == 0 else "")
        )
