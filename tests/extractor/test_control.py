"""The control endpoint over real HTTP, in front of a stand-in for the agent."""

import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import pytest

from godwit.extractor.control import (
    ControlClient,
    ControlServer,
    DriverUnreachable,
    Event,
    MoveUnderWay,
    Order,
)
from godwit.extractor.errors import DeadlinePassed, GodwitError, MoveFailed, MoveRefused

TOKEN = "open sesame"


class StandIn:
    """An agent without a JVM: it tells the steps that a test has given it."""

    def __init__(self) -> None:
        self.orders: list[Order] = []
        self.steps: list[Event] = [{"phase": "parking"}, {"phase": "failed", "error": "the store is gone"}]
        self.busy = False
        self.jvm_is_gone = False
        self.told_all = threading.Event()

    def status(self) -> Mapping[str, Any]:
        if self.jvm_is_gone:
            raise MoveFailed("the JVM is gone")
        return {"job": "etl", "epoch": 2}

    def snapshot(self) -> str:
        return '{"queries": []}'

    def move(self, order: Order, tell: Callable[[Event], None]) -> None:
        if self.busy:
            raise MoveUnderWay("a move is under way")
        self.orders.append(order)
        for step in self.steps:
            tell(step)
        self.told_all.set()


@pytest.fixture
def agent() -> StandIn:
    return StandIn()


@pytest.fixture
def endpoint(agent: StandIn) -> str:
    return ControlServer(agent, "127.0.0.1", TOKEN).endpoint


@pytest.fixture
def client(endpoint: str) -> ControlClient:
    return ControlClient(endpoint, TOKEN)


def post(endpoint: str, path: str, body: bytes, token: str = TOKEN) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(urlsplit(endpoint).netloc, timeout=10)
    connection.request("POST", path, body, {"Authorization": f"Bearer {token}"})
    response = connection.getresponse()
    return response.status, json.loads(response.read())


def test_status_and_snapshot_are_what_the_agent_says(client: ControlClient) -> None:
    assert client.status() == {"job": "etl", "epoch": 2}
    assert client.snapshot() == '{"queries": []}'


def test_a_move_is_told_step_by_step(client: ControlClient, agent: StandIn) -> None:
    assert list(client.migrate(30)) == agent.steps


def test_a_step_arrives_while_the_move_goes_on(client: ControlClient, agent: StandIn) -> None:
    seen = threading.Event()

    class Patient(list[Event]):
        def __iter__(self) -> Iterator[Event]:
            yield {"phase": "parking"}
            assert seen.wait(10), "the first step has to arrive before the second is told"
            yield {"phase": "left"}

    agent.steps = Patient()
    steps = client.migrate(30)
    assert next(steps) == {"phase": "parking"}
    seen.set()
    assert list(steps) == [{"phase": "left"}]


def test_the_deadline_counts_from_the_order_and_draining_is_the_default(
    client: ControlClient, agent: StandIn
) -> None:
    list(client.migrate(30))
    list(client.migrate(5, now=True))
    first, second = agent.orders
    assert first.deadline_at == pytest.approx(time.time() + 30, abs=5)
    assert second.deadline_at == pytest.approx(time.time() + 5, abs=5)
    assert (first.drain, second.drain) == (True, False)


@pytest.mark.parametrize("token", ["", "open", TOKEN + "x", "ö"])
def test_a_wrong_token_moves_nothing(endpoint: str, agent: StandIn, token: str) -> None:
    status, told = post(endpoint, "/migrate", b"{}", token.encode().decode("latin-1"))
    assert status == 401
    assert "token" in told["error"]
    assert agent.orders == []


@pytest.mark.parametrize(
    "body",
    [
        b"not json",
        b"[30]",
        b'{"deadline": 30}',
        b'{"deadline_seconds": "30"}',
        b'{"deadline_seconds": true}',
        b'{"deadline_seconds": NaN}',
        b'{"now": 1}',
        b"\xff",
        b'{"now": true}' + b" " * 10_000,
    ],
)
def test_an_order_that_makes_no_sense_is_refused(endpoint: str, agent: StandIn, body: bytes) -> None:
    status, told = post(endpoint, "/migrate", body)
    assert (status, told["exit_code"]) == (400, 64)
    assert agent.orders == []


def test_a_deadline_in_the_past_is_refused_as_such(client: ControlClient, agent: StandIn) -> None:
    with pytest.raises(DeadlinePassed):
        list(client.migrate(-3))
    assert agent.orders == []


def test_a_second_move_is_told_that_one_is_under_way(
    client: ControlClient, endpoint: str, agent: StandIn
) -> None:
    agent.busy = True
    assert post(endpoint, "/migrate", b"{}")[0] == 409
    with pytest.raises(MoveRefused, match="under way"):
        list(client.migrate(30))


def test_an_unknown_question_is_named(endpoint: str) -> None:
    status, told = post(endpoint, "/explode", b"")
    assert status == 404
    assert "/explode" in told["error"]


def test_a_jvm_that_cannot_answer_is_an_error_in_one_line(client: ControlClient, agent: StandIn) -> None:
    agent.jvm_is_gone = True
    with pytest.raises(GodwitError, match="the JVM is gone"):
        client.status()


def test_the_move_goes_on_when_who_ordered_it_hangs_up(endpoint: str, agent: StandIn) -> None:
    agent.steps = [{"phase": "extracting", "padding": "x" * 100_000}] * 200
    address = urlsplit(endpoint)
    with socket.create_connection((address.hostname or "", address.port or 0)) as connection:
        head = f"POST /migrate HTTP/1.0\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: 2\r\n\r\n{{}}"
        connection.sendall(head.encode())
        connection.recv(10)
    assert agent.told_all.wait(10)


def test_a_driver_that_dies_in_the_middle_is_not_taken_for_moved(
    client: ControlClient, agent: StandIn
) -> None:
    agent.steps = [{"phase": "parking"}]
    with pytest.raises(DriverUnreachable, match="fell silent"):
        list(client.migrate(30))


def test_nobody_there_is_said_with_the_next_step() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(DriverUnreachable, match="does not answer") as caught:
        ControlClient(f"http://127.0.0.1:{port}", TOKEN).status()
    assert "godwit jobs" in caught.value.next_step


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 500 Oh\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\n{}",
        b"SSH-2.0\r\n",
    ],
    ids=["cut off", "no JSON", "an error page", "another server", "no HTTP"],
)
@pytest.mark.parametrize(
    "ask", [ControlClient.status, ControlClient.snapshot, lambda client: list(client.migrate(5))]
)
def test_whatever_else_answers_is_no_driver(answer: bytes, ask: Callable[[ControlClient], object]) -> None:
    def serve() -> None:
        connection, _ = listening.accept()
        connection.recv(4096)
        connection.sendall(answer)
        connection.close()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve)
        thread.start()
        client = ControlClient(f"http://127.0.0.1:{listening.getsockname()[1]}", TOKEN)
        if (answer[9:12], ask) == (b"200", ControlClient.snapshot) and b"hello" in answer:
            assert ask(client) == "hello"  # whoever reads it finds that it is no picture
        else:
            with pytest.raises(DriverUnreachable):
                ask(client)
        thread.join()


def test_an_ipv6_address_is_served_too(agent: StandIn) -> None:
    try:
        server = ControlServer(agent, "::1", TOKEN)
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")
    assert ControlClient(server.endpoint, TOKEN).status()["job"] == "etl"
