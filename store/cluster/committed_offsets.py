"""How far consumer groups have read, as brokers keep it."""

from __future__ import annotations

from collections.abc import Iterable

from store.cluster.address import ANSWER_SECONDS
from store.cluster.brokers import Ask, Brokers
from store.cluster.held_pulls import held_pull
from store.model.codes import RequestCode, ResponseCode
from store.model.log_protocol import Positions, Queue
from store.remoting.command import Command
from store.remoting.headers import CommitOffset, GroupQueue, Offset

_SUCCESS = (ResponseCode.SUCCESS,)


def committed(brokers: Brokers, group: str, queues: Iterable[Queue]) -> Positions:
    """The offset to read next, of those of `queues` that have one. Raises `Unreachable`, `RequestRefused`."""

    def ask(queue: Queue) -> Ask:
        header = GroupQueue(group, queue.topic, queue.queue_id, set_zero_if_not_found=False)
        return Ask(queue, RequestCode.QUERY_CONSUMER_OFFSET, header, (*_SUCCESS, ResponseCode.QUERY_NOT_FOUND))

    answers = brokers.ask({queue: ask(queue) for queue in queues})
    return {
        queue: Offset.of(answer.fields).offset
        for queue, answer in answers.items()
        if answer.code == ResponseCode.SUCCESS
    }


def commit(brokers: Brokers, group: str, positions: Positions, *, once: bool = False) -> dict[Queue, Command]:
    """Set what the group has to read next; what is answered for each queue that is there. once: ask each broker for a
    short while only.

    With a remark from brokers of RocketMQ 5.3 and later: they did not set it, for an admin tool has reset the group.
    Raises `Unreachable`, `RequestRefused`.
    """
    asks = {queue: _commit(group, queue, at) for queue, at in positions.items()}
    if once:
        asks = {queue: ask._replace(timeout=ANSWER_SECONDS) for queue, ask in asks.items()}
    answers = brokers.ask(asks, 0.0 if once else None)
    unknown = [queue for queue, answer in answers.items() if answer.code != ResponseCode.SUCCESS]
    if unknown:  # a broker makes a group when it first pulls
        brokers.ask({queue: held_pull(group, queue, positions[queue], 1, 0.0) for queue in unknown})
        again = {queue: _commit(group, queue, positions[queue])._replace(answers=_SUCCESS) for queue in unknown}
        answers |= brokers.ask(again)
    return answers


def resets(brokers: Brokers, group: str, positions: Positions) -> Positions:
    """Where to go on in those queues in which such a broker has reset the group, and does not take what is committed.

    It says so to whoever asks, until somebody pulls there in the group's name: so that is done last of all. positions:
    offsets that are there.
    """
    found = committed(brokers, group, positions)
    brokers.ask({queue: held_pull(group, queue, at, 1, 0.0) for queue, at in positions.items()})
    return found


def _commit(group: str, queue: Queue, position: int) -> Ask:
    header = CommitOffset(group, queue.topic, queue.queue_id, position)
    answers = (*_SUCCESS, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST)
    return Ask(queue, RequestCode.UPDATE_CONSUMER_OFFSET, header, answers)
