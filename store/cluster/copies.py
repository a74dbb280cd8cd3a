"""What copies of a broker say (slaves): they may be behind their master, or have only what came since they were made,
and nobody tells how far."""

from __future__ import annotations

from dataclasses import replace

from store.cluster.routes import Broker
from store.model.codes import RequestCode, ResponseCode
from store.model.errors import Unreachable
from store.model.log_protocol import Queue
from store.remoting.command import Command
from store.remoting.headers import Offset

_FURTHER = {RequestCode.GET_MIN_OFFSET: min, RequestCode.GET_MAX_OFFSET: max}
_NOT_THERE = frozenset({ResponseCode.TOPIC_NOT_EXIST, ResponseCode.QUERY_NOT_FOUND})


class Copies:
    """Which of their answers count, after what was heard before. Threads may share it."""

    def __init__(self) -> None:
        self._known: dict[tuple[Queue, RequestCode], int] = {}  # as a master told last, or a copy that was further

    def heard(self, broker: Broker, queue: Queue, code: RequestCode, answer: Command) -> Command:
        """An answer of `broker`, as it counts: for a copy that has less no queue ends before where it was known to end,
        nor begins behind where it was known to begin. Raises `Unreachable` for a copy that does not know what was asked
        for: that is for its master to say.
        """
        if broker.is_copy and answer.code in _NOT_THERE:
            raise Unreachable(
                f"broker {broker.name} at {broker.readable}, {code.name} of {queue}: it is a copy and does not know of "
                "it, and its master, which may, does not answer"
            )
        if code not in _FURTHER or answer.code != ResponseCode.SUCCESS:
            return answer
        offset = Offset.of(answer.fields).offset
        if broker.is_copy:
            offset = _FURTHER[code](offset, self._known.get((queue, code), offset))
        self._known[queue, code] = offset
        return replace(answer, fields=Offset(offset).texts())
