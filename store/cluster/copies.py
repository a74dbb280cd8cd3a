"""What copies of a broker say (slaves): they may be behind their master, and nobody tells how far."""

from __future__ import annotations

from dataclasses import replace

from store.any_log import Positions, Queue
from store.broker.response_codes import ResponseCode
from store.cluster.routes import Broker
from store.errors import Unreachable
from store.remoting.codes import RequestCode
from store.remoting.command import Command
from store.remoting.headers import Offset

_NOT_THERE = frozenset({ResponseCode.TOPIC_NOT_EXIST, ResponseCode.QUERY_NOT_FOUND})


class Copies:
    """Which of their answers count, after what was heard before. Threads may share it."""

    def __init__(self) -> None:
        self._ends: Positions = {}  # as a master told last, or a copy that was further

    def heard(self, broker: Broker, queue: Queue, code: RequestCode, answer: Command) -> Command:
        """An answer of `broker`, as it counts: a queue does not end before where it was known to end, for a copy that
        is behind. Raises `Unreachable` for a copy that does not know what was asked for: that is for its master to say.
        """
        if broker.is_copy and answer.code in _NOT_THERE:
            raise Unreachable(
                f"broker {broker.name} at {broker.readable}, {code.name} of {queue}: it is a copy and does not know of "
                "it, and its master, which may, does not answer"
            )
        if code != RequestCode.GET_MAX_OFFSET or answer.code != ResponseCode.SUCCESS:
            return answer
        end = Offset.of(answer.fields).offset
        if broker.is_copy:
            end = max(end, self._ends.get(queue, 0))
        self._ends[queue] = end
        return replace(answer, fields=Offset(end).texts())
