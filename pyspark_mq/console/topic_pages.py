"""Pages of topics and of messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from pyspark_mq.browsing import bounds_of
from pyspark_mq.console.body_text import FORMS_OF_BODY, hex_dump, shown_body
from pyspark_mq.console.group_pages import group_of_dead_letters
from pyspark_mq.console.health_pages import record_of
from pyspark_mq.console.messages import FoundMessages, MessageSearch, find, message_at_offset
from pyspark_mq.console.site import Parameters, Site
from store import CorruptRecord, FilterError, InvalidArgument


class TopicPages:
    def __init__(self, site: Site) -> None:
        self._site = site
        self.parts: Mapping[str, Callable[[Parameters], str]] = {
            "topics": self._topics_part,
            "figures": self._figures_part,
            "messages": self._messages_part,
        }
        self.routes = [
            Route("/", self.topics),
            Route("/topic", self.topic),
            Route("/message", self.message),
            Route("/body", self.body),
        ]

    def topics(self, request: Request) -> Response:
        return self._site.page("topics.html", at="topics", part=self._topics_part(request.query_params))

    def _topics_part(self, _parameters: Parameters) -> str:
        figures = self._site.sampler.last.topics.values()
        shown = [each for each in figures if not each.is_system]
        system = [each for each in figures if each.is_system]
        return self._site.part(
            "_topics.html", shown=shown, system=system, groups=self._site.sampler.last.groups.values()
        )

    def topic(self, request: Request) -> Response:
        parameters, error = request.query_params, ""
        search, found = MessageSearch(parameters.get("topic", "")), FoundMessages([], is_partial=False)
        bounds = [(queue, *has) for queue, has in bounds_of(self._site.log, search.topic).items()]
        try:
            search = MessageSearch.of(parameters)
            found = find(self._site.log, search)
        except (InvalidArgument, FilterError) as wrong:
            error = str(wrong)
        return self._site.page(
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

    def _figures_part(self, parameters: Parameters) -> str:
        return self._site.part("_figures.html", figures=self._site.sampler.last.topics.get(parameters.get("topic", "")))

    def _messages_part(self, parameters: Parameters) -> str:
        search = MessageSearch.of(parameters)
        return self._messages(search, find(self._site.log, search))

    def _messages(self, search: MessageSearch, found: FoundMessages) -> str:
        offsets = [line.offset for line in found.lines] if search.queue and not search.key else []
        is_filtered = search.tags or search.sql  # then older matches may be any number of offsets back
        older = search.at(min(offsets) - search.count) if offsets and not is_filtered else None
        newer = search.at(max(offsets) + 1) if offsets and search.place else None
        return self._site.part("_messages.html", search=search, found=found, older=older, newer=newer)

    def message(self, request: Request) -> Response:
        queue, offset = self._site.where(request.query_params)
        form = request.query_params.get("as")
        shown: dict[str, Any] = {"queue": queue, "offset": offset, "row": None, "body": None, "error": "", "raw": ""}
        shown["bounds"] = self._site.log.bounds([queue]).get(queue)
        try:
            shown["row"] = row = message_at_offset(self._site.log, queue, offset)
            shown["body"] = shown_body(row["body"], form if form in FORMS_OF_BODY else None)
        except CorruptRecord as error:
            shown["error"] = str(error)
            if self._site.address.directory is not None:
                shown["raw"] = hex_dump(record_of(self._site.address.directory, queue, offset) or b"")
        is_dead = group_of_dead_letters(queue.topic) is not None
        return self._site.page(
            "message.html",
            at="dead" if is_dead else "topics",
            is_dead=is_dead,
            is_done="done" in request.query_params,
            **shown,
        )

    def body(self, request: Request) -> Response:
        """Return the body as a download, never as a page."""
        queue, offset = self._site.where(request.query_params)
        row = message_at_offset(self._site.log, queue, offset)
        name = f"message-{queue.queue_id}-{offset}.bin"
        return Response(
            row["body"],
            media_type="application/octet-stream",
            headers={"Content-Disposition": f'attachment; filename="{name}"'},
        )
