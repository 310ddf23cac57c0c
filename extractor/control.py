"""Somebody outside wants to look into a running driver, or to move it out, and must not need Spark for that.

The driver answers three questions over HTTP, to whoever shows the token from the job's running record:

    GET  /status     job, epoch, moves, whether a move is under way, progress
    GET  /snapshot   the stage graph, as the JVM gives it
    POST /migrate    {"deadline_seconds": 30, "now": false}: moves out; a line of JSON per step, as it happens

400 bad input, 401 wrong token, 404 no such question, 409 a move is under way already or the program is
over, 500 the JVM cannot say.
"""

import hmac
import json
import math
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPResponse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol
from urllib.parse import urlsplit

from godwit.extractor.errors import (
    DeadlinePassed,
    GodwitError,
    MoveFailed,
    MoveRefused,
    UsageError,
    failure,
)
from godwit.extractor.process import say

Event = Mapping[str, Any]
"""A step of a move: {"phase": "parking" | "draining" | "extracting" | "committed" | "left" | "failed", ...}.
The last one is "left", after which the driver is gone, or "failed", after which the program goes on."""

MAX_BODY_BYTES = 4096
DEFAULT_DEADLINE_SECONDS = 30.0
CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 60.0
"""A driver whose heap is full may take long to answer; longer than this it is of no use."""


class MoveUnderWay(MoveRefused):
    next_step = "wait for the move that is under way"


class DriverUnreachable(GodwitError):  # noqa: N818
    exit_code = MoveFailed.exit_code
    next_step = "see `godwit jobs`: the driver may have ended, or runs where this machine cannot reach it"


@dataclass(frozen=True)
class Order:
    """To move the job out."""

    deadline_at: float  # seconds since 1970
    drain: bool  # finish the stages that run, as far as time allows; else leave them
    must_leave: bool = False  # the machine goes away: a part of the state is better than none


class Controlled(Protocol):
    """What the endpoint speaks for."""

    def status(self) -> Mapping[str, Any]: ...

    def snapshot(self) -> str: ...

    def move(self, order: Order, tell: Callable[[Event], None]) -> None:
        """Moves out, telling each step; raises `MoveRefused` before the first if there can be none now."""


class ControlServer:
    """The endpoint, in a daemon thread of its own and one more per question; it ends with the process."""

    def __init__(self, controlled: Controlled, host: str, token: str) -> None:
        handler = type("Handler", (_Handler,), {"controlled": controlled, "token": token})
        server = _server_of(host)((host, 0), handler)
        shown = f"[{host}]" if ":" in host else host
        self.endpoint = f"http://{shown}:{server.server_address[1]}"
        threading.Thread(target=server.serve_forever, name="godwit-control", daemon=True).start()


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that has hung up is no event; anything else is a fault, and told in one line."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            say(f"a question could not be answered: {error!r}")


class _IPv6Server(_Server):
    address_family = socket.AF_INET6


def _server_of(host: str) -> type[_Server]:
    return _IPv6Server if ":" in host else _Server


class _Handler(BaseHTTPRequestHandler):
    controlled: Controlled
    token: str
    timeout = ANSWER_SECONDS  # of a silent peer's connection

    def do_GET(self) -> None:
        answers: dict[str, Callable[[], str]] = {
            "/status": lambda: json.dumps(dict(self.controlled.status())),
            "/snapshot": lambda: self.controlled.snapshot(),
        }
        self._guarded(lambda: self._answer(200, answers[self.path]()), known=self.path in answers)

    def do_POST(self) -> None:
        self._guarded(self._migrate, known=self.path == "/migrate")

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the program's stderr is the program's."""

    def _guarded(self, answer: Callable[[], None], known: bool) -> None:
        given = self.headers.get("Authorization", "")
        if not hmac.compare_digest(given.encode(), f"Bearer {self.token}".encode()):
            self._refuse(401, UsageError("wrong token", next_step="take it from the job's running record"))
        elif not known:
            self._refuse(404, UsageError(f"no such question: {self.path}"))
        else:
            try:
                answer()
            except (UsageError, DeadlinePassed) as error:
                self._refuse(400, error)
            except MoveRefused as error:
                self._refuse(409, error)
            except GodwitError as error:
                self._refuse(500, error)

    def _migrate(self) -> None:
        self.controlled.move(parse_order(self._body(), time.time()), _EventLines(self).tell)

    def _body(self) -> bytes:
        length = self.headers.get("Content-Length", "0")
        if not length.isdigit() or int(length) > MAX_BODY_BYTES:
            raise UsageError(f"a body of {length} bytes is no order to move")
        return self.rfile.read(int(length))

    def _refuse(self, status: int, error: GodwitError) -> None:
        self._answer(status, json.dumps(failure(error)))

    def _answer(self, status: int, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class _EventLines:
    """The answer to /migrate. Its head goes out with the first event: until then a refusal can be a 409."""

    def __init__(self, handler: BaseHTTPRequestHandler) -> None:
        self._handler = handler
        self._begun = False
        self._listener_gone = False

    def tell(self, event: Event) -> None:
        if self._listener_gone:
            return
        try:
            if not self._begun:
                self._begun = True
                self._handler.send_response(200)
                self._handler.send_header("Content-Type", "application/jsonl")
                self._handler.end_headers()
            self._handler.wfile.write(json.dumps(dict(event)).encode() + b"\n")
            self._handler.wfile.flush()
        except OSError:
            # Who asked has gone away. The order stands, as after a notice from a machine.
            self._listener_gone = True


def parse_order(body: bytes, ordered_at: float) -> Order:
    try:
        order = json.loads(body or b"{}")
    except ValueError as error:
        raise UsageError(f"the order to move is no JSON: {error}") from error
    if not isinstance(order, dict) or not order.keys() <= {"deadline_seconds", "now"}:
        raise UsageError('an order to move is {"deadline_seconds": number, "now": true or false}')
    seconds, now = order.get("deadline_seconds", DEFAULT_DEADLINE_SECONDS), order.get("now", False)
    if type(seconds) not in (int, float) or not math.isfinite(seconds) or type(now) is not bool:
        raise UsageError('an order to move is {"deadline_seconds": number, "now": true or false}')
    if seconds <= 0:
        raise DeadlinePassed(f"a deadline {-seconds:g} s ago cannot be met")
    return Order(ordered_at + seconds, drain=not now)


class ControlClient:
    """The other end: what the command line and the operator hold."""

    def __init__(self, endpoint: str, token: str) -> None:
        self._endpoint = endpoint
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}

    def status(self) -> dict[str, Any]:
        answer: dict[str, Any] = self._json(self._ask("GET", "/status"))
        return answer

    def snapshot(self) -> str:
        return self._whole(self._ask("GET", "/snapshot")).decode(errors="replace")

    def migrate(self, deadline_seconds: float, now: bool = False) -> Iterator[dict[str, Any]]:
        """The events of the move as they happen; the last one is "left" or "failed"."""
        order = json.dumps({"deadline_seconds": deadline_seconds, "now": now})
        response = self._ask("POST", "/migrate", order, ANSWER_SECONDS + deadline_seconds)
        last: dict[str, Any] = {}
        while line := self._line(response):
            last = self._parsed(line)
            yield last
        if last.get("phase") not in ("left", "failed"):
            raise DriverUnreachable(f"the driver at {self._endpoint} fell silent in the middle of the move")

    def _json(self, response: HTTPResponse) -> Any:
        return self._parsed(self._whole(response))

    def _parsed(self, text: bytes) -> Any:
        try:
            return json.loads(text)
        except ValueError as error:
            raise self._other_language(str(error)) from error

    def _other_language(self, what: str) -> DriverUnreachable:
        return DriverUnreachable(f"what answers at {self._endpoint} is no driver of godwit: {what}")

    def _whole(self, response: HTTPResponse) -> bytes:
        try:
            return response.read()
        except (OSError, HTTPException) as error:
            raise DriverUnreachable(
                f"the driver at {self._endpoint} went away while it answered: {error!r}"
            ) from error

    def _line(self, response: HTTPResponse) -> bytes:
        try:
            line = response.readline()
        except (OSError, HTTPException):
            return b""
        return line if line.endswith(b"\n") else b""

    def _ask(
        self, method: str, path: str, body: str | None = None, answer_seconds: float = ANSWER_SECONDS
    ) -> HTTPResponse:
        address = urlsplit(self._endpoint)
        connection = HTTPConnection(address.hostname or "", address.port, timeout=CONNECT_SECONDS)
        try:
            connection.connect()
            connection.sock.settimeout(answer_seconds)
            connection.request(method, path, body, self._headers)
            response = connection.getresponse()
        except (OSError, HTTPException) as error:
            raise DriverUnreachable(f"the driver at {self._endpoint} does not answer: {error}") from error
        if response.status != 200:
            raise self._refusal(response)
        return response

    def _refusal(self, response: HTTPResponse) -> GodwitError:
        told = self._json(response)
        if not isinstance(told, dict) or not told.keys() >= {"error", "next_step", "exit_code"}:
            return self._other_language(f"{response.status} {response.reason}")
        kind: type[GodwitError] = DriverUnreachable
        if response.status == 409:
            kind = MoveRefused
        elif response.status == 400:
            kind = DeadlinePassed if told["exit_code"] == DeadlinePassed.exit_code else UsageError
        return kind(told["error"], next_step=told["next_step"])
