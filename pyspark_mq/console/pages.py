"""The pages of the console, and the application that serves them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from pyspark_mq.browsing import bounds_of
from pyspark_mq.console.access import ConsoleKeys, Forbidden, Guard
from pyspark_mq.console.bodies import FORMS_OF_BODY, hex_dump, shown_body
from pyspark_mq.console.changes import apply_reset, group_of_dead_letters, members_of, plan_reset, send_again
from pyspark_mq.console.health import Verification, delayed, health_of, record_of
from pyspark_mq.console.messages import FoundMessages, MessageSearch, find, message_at_offset, queue_named
from pyspark_mq.console.rendering import environment
from pyspark_mq.console.sampler import Sampler
from pyspark_mq.stats.measures import group_lags
from store import CorruptRecord, FilterError, InvalidArgument, MessageTooLarge, ReadOnlyStore, StoreError
from store.format.layout import DLQ_TOPIC_PREFIX
from store.model.log_protocol import LogAddress, Queue

_FORM_BYTES = 1 << 16
Parameters = Mapping[str, str]


class ConsolePages:
    """Every page of one console. Those that read the log run in threads; `parts` are what an open page renews."""

    def __init__(self, address: LogAddress, keys: ConsoleKeys, *, interval: float, allow_changes: bool) -> None:
        self.keys = keys
        self.sampler = Sampler(address, interval)
        self.is_over = threading.Event()  # ends the streams of open pages
        self._address = address
        self._allow_changes = allow_changes
        self._verification = None if address.directory is None else Verification(address.directory)
        self._templates = environment(address=str(address), csrf=keys.csrf, allow_changes=allow_changes)
        self.parts: Mapping[str, Callable[[Parameters], str]] = {
            "topics": self._topics_part,
            "figures": self._figures_part,
            "messages": self._messages_part,
            "groups": self._groups_part,
            "group": self._group_part,
            "verification": self._verification_part,
        }

    def routes(self) -> list[Route | Mount]:
        return [
            Route("/", self.topics),
            Route("/topic", self.topic),
            Route("/message", self.message),
            Route("/body", self.body),
            Route("/groups", self.groups),
            Route("/group", self.group),
            Route("/group/reset", self.planned_reset),
            Route("/group/reset", self.reset, methods=["POST"]),
            Route("/delayed", self.delayed),
            Route("/dead", self.dead),
            Route("/dead/again", self.again, methods=["POST"]),
            Route("/health", self.health),
            Route("/health/verify", self.verify, methods=["POST"]),
            Route("/live", self.live),
            Route("/chart", self.chart),
            Mount("/static", StaticFiles(directory=Path(__file__).with_name("static"))),
        ]

    # --- topics and messages ---------------------------------------------------------------------------

    def topics(self, request: Request) -> Response:
        return self._page("topics.html", at="topics", part=self._topics_part(request.query_params))

    def _topics_part(self, _parameters: Parameters) -> str:
        figures = self.sampler.last.topics.values()
        shown = [each for each in figures if not each.is_system]
        system = [each for each in figures if each.is_system]
        return self._part("_topics.html", shown=shown, system=system, groups=self.sampler.last.groups.values())

    def topic(self, request: Request) -> Response:
        parameters, error = request.query_params, ""
        search, found = MessageSearch(parameters.get("topic", "")), FoundMessages([], is_partial=False)
        bounds = self._bounds(search.topic)
        try:
            search = MessageSearch.of(parameters)
            found = find(self.sampler.log, search)
        except (InvalidArgument, FilterError) as wrong:
            error = str(wrong)
        return self._page(
            "topic.html",
            at="topics",
            search=search,
            given=parameters,
            error=error,
            bounds=bounds,
            group=group_of_dead_letters(search.topic),
            figures=self._figures_part(parameters),
            part=self._messages(search, found),
            is_live=not (error or search.place or search.key),
        )

    def _bounds(self, topic: str) -> list[tuple[Queue, int, int]]:
        return [(queue, *has) for queue, has in bounds_of(self.sampler.log, topic).items()]

    def _figures_part(self, parameters: Parameters) -> str:
        return self._part("_figures.html", figures=self.sampler.last.topics.get(parameters.get("topic", "")))

    def _messages_part(self, parameters: Parameters) -> str:
        search = MessageSearch.of(parameters)
        return self._messages(search, find(self.sampler.log, search))

    def _messages(self, search: MessageSearch, found: FoundMessages) -> str:
        offsets = [line.offset for line in found.lines] if search.queue else []
        older = search.at(min(offsets) - search.count) if offsets else None
        newer = search.at(max(offsets) + 1) if offsets and search.place else None
        return self._part("_messages.html", search=search, found=found, older=older, newer=newer)

    def message(self, request: Request) -> Response:
        queue, offset = self._where(request.query_params)
        form = request.query_params.get("as")
        shown: dict[str, Any] = {"queue": queue, "offset": offset, "row": None, "body": None, "error": "", "raw": ""}
        shown["bounds"] = self.sampler.log.bounds([queue]).get(queue)
        try:
            shown["row"] = row = message_at_offset(self.sampler.log, queue, offset)
            shown["body"] = shown_body(row["body"], form if form in FORMS_OF_BODY else None)
        except (CorruptRecord, MessageTooLarge) as error:
            shown["error"] = str(error)
            if self._address.directory is not None:
                shown["raw"] = hex_dump(record_of(self._address.directory, queue, offset) or b"")
        is_dead = group_of_dead_letters(queue.topic) is not None
        return self._page("message.html", at="dead" if is_dead else "topics", is_dead=is_dead, **shown)

    def body(self, request: Request) -> Response:
        """The body as a file, and never as a page."""
        queue, offset = self._where(request.query_params)
        row = message_at_offset(self.sampler.log, queue, offset)
        name = f"message-{queue.queue_id}-{offset}.bin"
        return Response(
            row["body"],
            media_type="application/octet-stream",
            headers={"Content-Disposition": f'attachment; filename="{name}"'},
        )

    def _where(self, parameters: Parameters) -> tuple[Queue, int]:
        queue = queue_named(self.sampler.log, parameters.get("topic", ""), parameters.get("queue", ""))
        offset = parameters.get("offset", "")
        if not offset.isdecimal() or len(offset) > 18:
            raise InvalidArgument(f"Offset {offset!r:.40} is not a number")
        return queue, int(offset)

    # --- groups ----------------------------------------------------------------------------------------

    def groups(self, request: Request) -> Response:
        return self._page("groups.html", at="groups", part=self._groups_part(request.query_params))

    def _groups_part(self, _parameters: Parameters) -> str:
        return self._part("_groups.html", groups=self.sampler.last.groups.values())

    def group(self, request: Request) -> Response:
        name = request.query_params.get("group", "")
        if name not in self.sampler.last.groups:
            self.sampler.look()  # it may be new
        if name not in self.sampler.last.groups:
            raise HTTPException(404, f"There is no group {name!r:.80}")
        return self._page(
            "group.html",
            at="groups",
            group=self.sampler.last.groups[name],
            topics=[each.topic for each in self.sampler.last.topics.values() if not each.is_system],
            part=self._group_part(request.query_params),
        )

    def _group_part(self, parameters: Parameters) -> str:
        name = parameters.get("group", "")
        members = members_of(self._address, name)
        owners = {queue: each.id for each in members for queue in each.queues}
        found = list(group_lags(self.sampler.log, name))
        figures = self.sampler.last.groups.get(name)
        return self._part("_group.html", lags=found, members=members, owners=owners, figures=figures)

    def planned_reset(self, request: Request) -> Response:
        """The dry run, which changes nothing."""
        given = request.query_params
        group, topic, place = (given.get(name, "").strip() for name in ("group", "topic", "place"))
        reset = plan_reset(self._address, self.sampler.log, group, topic, place)
        return self._page("reset.html", at="groups", reset=reset)

    async def reset(self, request: Request) -> Response:
        form = await self._own_form(request)

        def change() -> None:
            plan = plan_reset(self._address, self.sampler.log, form["group"], form["topic"], form["place"])
            apply_reset(self._address, plan)
            self.sampler.look()

        await run_in_threadpool(change)
        return _to("/group", group=form["group"], done="reset")

    # --- delayed messages, dead letters ----------------------------------------------------------------

    def delayed(self, _request: Request) -> Response:
        return self._page("delayed.html", at="delayed", found=delayed(self.sampler.log))

    def dead(self, _request: Request) -> Response:
        found = [each for each in self.sampler.last.topics.values() if each.topic.startswith(DLQ_TOPIC_PREFIX)]
        return self._page("dead.html", at="dead", found=found)

    async def again(self, request: Request) -> Response:
        form = await self._own_form(request)

        def change() -> None:
            send_again(self._address, *self._where(form))

        await run_in_threadpool(change)
        return _to("/message", topic=form["topic"], queue=form["queue"], offset=form["offset"], done="again")

    # --- health ----------------------------------------------------------------------------------------

    def health(self, request: Request) -> Response:
        health = None if self._address.directory is None else health_of(self._address.directory)
        return self._page("health.html", at="health", health=health, part=self._verification_part(request.query_params))

    def _verification_part(self, _parameters: Parameters) -> str:
        return self._part("_verification.html", verification=self._verification)

    async def verify(self, request: Request) -> Response:
        await self._own_form(request, changes=False)
        if self._verification is not None:
            self._verification.start()
        return _to("/health")

    # --- what open pages ask for -----------------------------------------------------------------------

    async def live(self, request: Request) -> Response:
        """A part of a page as server-sent events, each time it changed."""
        render = self.parts.get(request.query_params.get("part", ""))
        if render is None:
            raise HTTPException(404, "There is no such part")
        return StreamingResponse(self._events(render, request.query_params), media_type="text/event-stream")

    async def _events(self, render: Callable[[Parameters], str], parameters: Parameters) -> AsyncIterator[str]:
        last = None
        while not self.is_over.is_set():
            try:
                part = await run_in_threadpool(render, parameters)
            except StoreError as error:
                part = self._part("_failure.html", error=str(error))
            if part != last:
                yield "".join(f"data: {line}\n" for line in part.splitlines()) + "\n"
            last = part
            await asyncio.sleep(self.sampler.interval)

    def chart(self, request: Request) -> Response:
        """The last hour of a topic's rate, or of a group's lag."""
        topic, group = request.query_params.get("topic"), request.query_params.get("group", "")
        values: list[float | None] = []
        times = []
        for sample in list(self.sampler.history):
            times.append(round(sample.at, 3))
            figures = sample.topics.get(topic) if topic else None
            of_group = sample.groups.get(group)
            values.append(figures.rate if figures else of_group.lag if of_group else None)
        return JSONResponse({"times": times, "values": values})

    # --- helpers ---------------------------------------------------------------------------------------

    async def _own_form(self, request: Request, *, changes: bool = True) -> dict[str, str]:
        """Raises `Forbidden` for a form of another site, `ReadOnlyStore` if the console changes nothing."""
        body = b""
        async for piece in request.stream():
            body += piece
            if len(body) > _FORM_BYTES:
                raise HTTPException(413, "The form is too large")
        form = dict(parse_qsl(body.decode(errors="replace"), keep_blank_values=True))
        self.keys.must_be_own_form(request, form)
        if changes and not self._allow_changes:
            raise ReadOnlyStore("This console changes nothing. Start it with --allow-changes to allow it.")
        return form

    def _part(self, name: str, **values: Any) -> str:
        return self._templates.get_template(name).render(values)

    def _page(self, name: str, status: int = 200, **values: Any) -> Response:
        values.setdefault("failure", self.sampler.failure)
        return HTMLResponse(self._part(name, **values), status)

    def forbidden(self, _request: Request, error: Exception) -> Response:
        return self._page("error.html", 403, title="Not allowed", error=str(error), failure=None)

    def failed(self, _request: Request, error: Exception) -> Response:
        return self._page("error.html", 400, title="That did not work", error=str(error))

    def not_found(self, _request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return self._page("error.html", error.status_code, title="Not found", error=error.detail)


def console_app(
    address: LogAddress, keys: ConsoleKeys, *, interval: float, allow_changes: bool = False
) -> tuple[Starlette, ConsolePages]:
    """Return the application, and its pages. The log is open from now until the application's shutdown."""
    pages = ConsolePages(address, keys, interval=interval, allow_changes=allow_changes)

    @asynccontextmanager
    async def running(_app: Starlette) -> AsyncIterator[None]:
        pages.sampler.start()
        yield
        pages.is_over.set()
        await run_in_threadpool(pages.sampler.close)

    app = Starlette(
        routes=pages.routes(),
        middleware=[Middleware(Guard, keys=keys, refuse=pages.forbidden)],
        exception_handlers={Forbidden: pages.forbidden, StoreError: pages.failed, HTTPException: pages.not_found},
        lifespan=running,
    )
    return app, pages


def _to(path: str, **parameters: str) -> Response:
    return RedirectResponse(f"{path}?{urlencode(parameters)}" if parameters else path, status_code=303)
