"""Pages of consumer groups: lag, members, Spark queries, resets with a dry run, and redelivery of dead letters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from pyspark_mq.browsing import bounds_of, offsets_at, place_of
from pyspark_mq.console.site import Parameters, Site, redirect
from pyspark_mq.stats.measures import RunningQuery, group_lags, running_queries
from store import InvalidArgument, MessageStore, OffsetLost, UnsupportedStore
from store.api.group_protocol import HasGroups, MemberInfo
from store.broker.retries import send_back
from store.format.layout import DLQ_TOPIC_PREFIX
from store.model.log_protocol import Log, LogAddress, Positions, Queue

_SOON = 1  # the delay level of one second


@dataclass(frozen=True)
class QueueMove:
    """A queue's offset in a reset.

    before: None if the group has no offset. lag: unread messages after the reset.
    """

    queue: Queue
    before: int | None
    after: int
    lag: int


@dataclass(frozen=True)
class GroupReset:
    group: str
    topic: str
    place: str
    moves: Sequence[QueueMove]
    members: Sequence[MemberInfo]

    @property
    def positions(self) -> Positions:
        return {move.queue: move.after for move in self.moves}


def plan_reset(address: LogAddress, log: Log, group: str, topic: str, place: str) -> GroupReset:
    """Return what a reset would change. An offset outside of a queue is clamped to the queue's bounds.

    Raises `InvalidArgument` for an invalid place, `UnknownTopic`, `InvalidGroup`.
    """
    bounds = bounds_of(log, topic)
    before, moves = log.committed(group, bounds), list[QueueMove]()
    for queue, offset in offsets_at(log, bounds, place_of(place)).items():
        first, end = bounds[queue]
        after = min(max(offset, first), end)
        moves.append(QueueMove(queue, before.get(queue), after, end - after))
    return GroupReset(group, topic, place, moves, members_of(address, group))


def apply_reset(address: LogAddress, reset: GroupReset) -> None:
    """Apply a planned reset. Raises `UnsupportedStore`, `UnknownGroup`, `GroupConflict`, `StoreLocked`."""
    if not isinstance(address, HasGroups):
        raise UnsupportedStore(f"{address}: an archive has no consumer groups. Start the console on its store")
    address.group(reset.group).reset(reset.positions)


def members_of(address: LogAddress, group: str) -> list[MemberInfo]:
    """Return the members of a group, [] if the log keeps no groups."""
    return address.group(group).members() if isinstance(address, HasGroups) else []


def queries_of(address: LogAddress, group: str | None = None) -> list[RunningQuery]:
    """Return the running Spark queries of a group, [] for a log without a directory. group: None for any."""
    found = [] if address.directory is None else running_queries(Path(address.directory))
    return [each for each in found if group in (None, each.group)]


def group_of_dead_letters(topic: str) -> str | None:
    return topic.removeprefix(DLQ_TOPIC_PREFIX) if topic.startswith(DLQ_TOPIC_PREFIX) else None


def send_again(address: LogAddress, queue: Queue, offset: int) -> str:
    """Redeliver a dead letter to its group after a second, with its attempts reset to 0. Return the group.

    The dead letter stays in its topic. Raises `UnsupportedStore` for a cluster, `OffsetLost`, and `StoreLocked` while a
    RocketMQ broker runs on the directory.
    """
    group = group_of_dead_letters(queue.topic)
    if group is None:
        raise InvalidArgument(f"{queue.topic} is not the dead-letter topic of a group. Those are named %DLQ%GROUP")
    if address.directory is None:
        raise UnsupportedStore(
            f"{address}: the console can redeliver dead letters of a directory only. For a cluster, use mqadmin or "
            "the RocketMQ Dashboard"
        )
    with MessageStore.open(address.directory, create=False) as store:
        found = store.get_message("", queue.topic, queue.queue_id, offset, 1).messages
        if not found or found[0].queue_offset != offset:
            raise OffsetLost(f"{queue}: no message has offset {offset}. It was deleted, or it was never written")
        send_back(store, group, [found[0]._replace(reconsume_times=0)], level=_SOON)
    return group


class GroupPages:
    def __init__(self, site: Site) -> None:
        self._site = site
        self.parts: Mapping[str, Callable[[Parameters], str]] = {
            "groups": self._groups_part,
            "group": self._group_part,
            "queries": self._queries_part,
        }
        self.routes = [
            Route("/groups", self.groups),
            Route("/group", self.group),
            Route("/group/reset", self.planned_reset),
            Route("/group/reset", self.reset, methods=["POST"]),
            Route("/queries", self.queries),
            Route("/dead", self.dead),
            Route("/dead/again", self.again, methods=["POST"]),
        ]

    def groups(self, request: Request) -> Response:
        return self._site.page("groups.html", at="groups", part=self._groups_part(request.query_params))

    def _groups_part(self, _parameters: Parameters) -> str:
        return self._site.part("_groups.html", groups=self._site.sampler.last.groups.values())

    def group(self, request: Request) -> Response:
        return self._group_page(request.query_params)

    def _group_page(self, parameters: Parameters, error: str = "") -> Response:
        name = parameters.get("group", "")
        if name not in self._site.sampler.last.groups:
            self._site.sampler.look()  # the group may be new
        if name not in self._site.sampler.last.groups:
            raise HTTPException(404, f"Group {name!r:.80} does not exist")
        return self._site.page(
            "group.html",
            at="groups",
            group=self._site.sampler.last.groups[name],
            topics=[each.topic for each in self._site.sampler.last.topics.values() if not each.is_system],
            part=self._group_part(parameters),
            is_done="done" in parameters,
            error=error,
        )

    def _group_part(self, parameters: Parameters) -> str:
        name = parameters.get("group", "")
        members = members_of(self._site.address, name)
        owners = {queue: each.id for each in members for queue in each.queues}
        found = list(group_lags(self._site.log, name))
        figures = self._site.sampler.last.groups.get(name)
        queries = queries_of(self._site.address, name)
        return self._site.part(
            "_group.html", lags=found, members=members, owners=owners, figures=figures, queries=queries
        )

    def queries(self, request: Request) -> Response:
        return self._site.page("queries.html", at="queries", part=self._queries_part(request.query_params))

    def _queries_part(self, _parameters: Parameters) -> str:
        return self._site.part(
            "_queries.html",
            queries=queries_of(self._site.address),
            figures=self._site.sampler.last.groups,
            is_directory=self._site.address.directory is not None,
        )

    def planned_reset(self, request: Request) -> Response:
        try:
            reset = self._plan(request.query_params)
        except InvalidArgument as error:
            return self._group_page(request.query_params, str(error))
        queries = queries_of(self._site.address, reset.group)
        return self._site.page("reset.html", at="groups", reset=reset, queries=queries)

    def _plan(self, given: Parameters) -> GroupReset:
        group, topic, place = (given.get(name, "").strip() for name in ("group", "topic", "place"))
        return plan_reset(self._site.address, self._site.log, group, topic, place)

    async def reset(self, request: Request) -> Response:
        form = await self._site.own_form(request)

        def change() -> None:
            apply_reset(self._site.address, self._plan(form))
            self._site.sampler.look()

        await run_in_threadpool(change)
        return redirect("/group", group=form.get("group", ""), done="reset")

    def dead(self, _request: Request) -> Response:
        found = [each for each in self._site.sampler.last.topics.values() if each.topic.startswith(DLQ_TOPIC_PREFIX)]
        return self._site.page("dead.html", at="dead", found=found)

    async def again(self, request: Request) -> Response:
        form = await self._site.own_form(request)

        def change() -> None:
            send_again(self._site.address, *self._site.where(form))

        await run_in_threadpool(change)
        return redirect("/message", **{name: form[name] for name in ("topic", "queue", "offset")}, done="again")
