from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from functools import partial

import pytest

from store import RequestRefused
from store.disk.figures import Figures
from store.model.codes import RequestCode
from store.remoting.client import Client
from store.remoting.command import Command
from store.remoting.connection import Connection
from store.remoting.request import Request, Response
from store.remoting.server import Processors, Server, ServerLimits
from store.remoting.threads import LoopThread, WorkerPool
from tests.waiting import PATIENCE, until

THREADS = 8


@pytest.fixture
def turns() -> Iterator[WorkerPool]:
    it = WorkerPool(THREADS, "test")
    yield it
    it.close()


def connection() -> Connection:
    return Connection(lambda connection, command: None, lambda connection, error: None)


def test_connection_with_many_requests_does_not_block_others() -> None:
    """One connection has used up its share of threads."""
    gates, begun, thread = [threading.Event(), threading.Event()], [0, 0], LoopThread("test")

    def wait(request: Request) -> Response:
        which = int(request.command.fields["which"])
        begun[which] += 1
        assert gates[which].wait(60)
        return Response()

    handlers = {RequestCode.HEART_BEAT: lambda request: Response(), RequestCode.VIEW_MESSAGE_BY_ID: wait}
    quick = {RequestCode.GET_BROKER_CONFIG: lambda request: Response()}
    processors = Processors(WorkerPool(THREADS, "test"), quick, handlers, lambda connection: None)
    server = Server(thread, processors, "127.0.0.1:0", ServerLimits(), None, Figures())
    with Client(timeout=60) as many, Client(timeout=60) as one:

        def ask(which: int) -> Future[Command]:
            return many.ask(server.address, RequestCode.VIEW_MESSAGE_BY_ID, {"which": str(which)})

        asked = [ask(0) for _ in range(THREADS)]
        until(lambda: begun[0] == THREADS // 2)
        asked += [ask(1) for _ in range(100)]
        for _ in range(20):
            assert one.request(server.address, RequestCode.HEART_BEAT, {}).code == 0
        assert begun == [THREADS // 2, 0]
        gates[0].set()
        until(lambda: begun[1] > 0)
        assert one.request(server.address, RequestCode.HEART_BEAT, {}).code == 0
        assert begun[1] <= THREADS // 2
        gates[1].set()
        assert {each.result().code for each in asked} == {0}
    server.close()
    thread.stop()


def test_requests_of_a_client_that_does_not_read_wait(turns: WorkerPool) -> None:
    stuck, gone = connection(), connection()
    asked = []
    for each in (stuck, gone):
        each.is_stuck_writing = True
        asked.append(turns.begin(each, lambda: 1))
    assert turns.begin(connection(), lambda: 2).result() == 2
    assert not any(each.done() for each in asked)
    gone.is_over = True  # requests sent before it disconnected, such as commits, still count
    turns.look()
    assert asked[1].result() == 1
    assert not asked[0].done()
    stuck.is_stuck_writing = False
    turns.look()
    assert asked[0].result() == 1


def test_close_finishes_pending_requests(turns: WorkerPool) -> None:
    gate, stuck = threading.Event(), connection()
    stuck.is_stuck_writing = True
    asked = [turns.begin(connection(), lambda: gate.wait(60)) for _ in range(20)]
    asked.append(turns.begin(stuck, lambda: True))
    closing = threading.Thread(target=turns.close)
    closing.start()
    gate.set()
    closing.join()
    assert [each.result() for each in asked] == [True] * 21
    with pytest.raises(RequestRefused):
        turns.begin(stuck, lambda: True)


def test_close_refuses_requests_that_start_too_late() -> None:
    """14,000 heartbeats of a disconnected client would delay the end of a server for a minute."""
    turns, is_begun, gate = WorkerPool(1, "test"), threading.Event(), threading.Event()
    begun = turns.begin(connection(), lambda: (is_begun.set(), gate.wait(PATIENCE)))
    late = turns.begin(connection(), lambda: True)
    assert is_begun.wait(PATIENCE)
    closing = threading.Thread(target=turns.close, args=(0.0,))
    closing.start()
    until(lambda: is_closing(turns))
    gate.set()
    closing.join()
    assert begun.result() == (None, True)
    with pytest.raises(RequestRefused, match="leaving"):
        late.result()


def is_closing(turns: WorkerPool) -> bool:
    try:
        turns.begin(connection(), lambda: True)
    except RequestRefused:
        return True
    return False


def test_requests_continue_after_a_thread_failed_to_start(no_thread_once: None) -> None:
    turns = WorkerPool(1, "test")
    with pytest.raises(RuntimeError, match="new thread"):
        turns.begin(connection(), lambda: False)
    assert turns.begin(connection(), lambda: True).result(PATIENCE)
    turns.close()


def test_ordered_request_waits_for_earlier_ones(turns: WorkerPool) -> None:
    gate, its, another = threading.Event(), connection(), connection()
    before = turns.begin(its, lambda: gate.wait(PATIENCE))
    last = turns.begin(its, lambda: before.done(), after_others=True)
    after = turns.begin(its, lambda: last.done())
    turns.begin(another, lambda: None, after_others=True).result(PATIENCE)
    assert not last.done()
    assert not after.done()
    gate.set()
    assert last.result(PATIENCE) is True
    after.result(PATIENCE)


def test_close_keeps_the_order_of_requests(turns: WorkerPool) -> None:
    gate, its, said = threading.Event(), connection(), list[int]()
    turns.begin(its, lambda: gate.wait(PATIENCE))

    def say(number: int) -> None:
        if not number % 2:
            threading.Event().wait(0.01)
        said.append(number)

    for number in range(10):
        turns.begin(its, partial(say, number), after_others=True)
    closing = threading.Thread(target=turns.close)
    closing.start()
    until(lambda: is_closing(turns))
    gate.set()
    closing.join(PATIENCE)
    assert said == list(range(10))
