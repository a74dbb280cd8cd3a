"""The web application of a console, and its server."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import FrameType

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from pyspark_mq.console.group_pages import GroupPages
from pyspark_mq.console.guard import TOKEN_PARAMETER, ConsoleKeys, Forbidden, Guard
from pyspark_mq.console.health_pages import HealthPages
from pyspark_mq.console.site import Parameters, Site
from pyspark_mq.console.topic_pages import TopicPages
from store import StoreError
from store.model.log_protocol import LogAddress


class ConsoleApp:
    """The pages of a console, their updates, and error pages. `app` closes the log at shutdown.

    is_over: set it to end the event streams of open pages.
    """

    def __init__(self, site: Site) -> None:
        pages = TopicPages(site), GroupPages(site), HealthPages(site)
        self._site = site
        self._parts = {name: render for each in pages for name, render in each.parts.items()}
        self.is_over = threading.Event()
        self.app = Starlette(
            routes=[
                *(route for each in pages for route in each.routes),
                Route("/live", self.live),
                Route("/chart", self.chart),
                Mount("/static", StaticFiles(directory=Path(__file__).with_name("static"))),
            ],
            middleware=[Middleware(Guard, keys=site.keys, refuse=self._forbidden)],
            exception_handlers={
                Forbidden: self._forbidden,
                StoreError: self._failed,
                HTTPException: self._not_found,
            },
            lifespan=self._running,
        )

    @asynccontextmanager
    async def _running(self, _app: Starlette) -> AsyncIterator[None]:
        self._site.sampler.start()
        yield
        self.is_over.set()
        await run_in_threadpool(self._site.sampler.close)

    async def live(self, request: Request) -> Response:
        """Stream a part of a page as server-sent events."""
        render = self._parts.get(request.query_params.get("part", ""))
        if render is None:
            raise HTTPException(404, "This page does not exist")
        return StreamingResponse(self._events(render, request.query_params), media_type="text/event-stream")

    async def _events(self, render: Callable[[Parameters], str], parameters: Parameters) -> AsyncIterator[str]:
        last = None
        while not self.is_over.is_set():
            try:
                part = await run_in_threadpool(render, parameters)
            except StoreError as error:
                part = self._site.part("_failure.html", error=str(error))
            if part != last:
                yield "".join(f"data: {line}\n" for line in part.splitlines()) + "\n"
            last = part
            await asyncio.sleep(self._site.sampler.interval)

    def chart(self, request: Request) -> Response:
        topic, group = request.query_params.get("topic"), request.query_params.get("group", "")
        values: list[float | None] = []
        times = []
        for sample in list(self._site.sampler.history):
            times.append(round(sample.at, 3))
            figures = sample.topics.get(topic) if topic else None
            of_group = sample.groups.get(group)
            values.append(figures.rate if figures else of_group.lag if of_group else None)
        return JSONResponse({"times": times, "values": values})

    def _forbidden(self, _request: Request, error: Exception) -> Response:
        return self._site.page("error.html", 403, title="Not allowed", error=str(error), failure=None)

    def _failed(self, _request: Request, error: Exception) -> Response:
        return self._site.page("error.html", 400, title="The request failed", error=str(error))

    def _not_found(self, _request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return self._site.page("error.html", error.status_code, title="Not found", error=error.detail)


class ConsoleServer(uvicorn.Server):
    """Serves a log's console at `url`. The constructor opens the port and the log.

    interval: seconds between two samples of the log.
    """

    def __init__(
        self, address: LogAddress, host: str, port: int, *, interval: float, allow_changes: bool = False
    ) -> None:
        keys = ConsoleKeys()
        self._console = ConsoleApp(Site(address, keys, interval=interval, allow_changes=allow_changes))
        # An access log would show the token.
        super().__init__(
            uvicorn.Config(self._console.app, log_level="error", access_log=False, timeout_graceful_shutdown=2)
        )
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, port), family=family)
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{self._listener.getsockname()[1]}/?{TOKEN_PARAMETER}={keys.token}"

    def serve_pages(self) -> None:
        """Serve until `stop` or a signal."""
        try:
            self.run([self._listener])
        finally:
            self._listener.close()

    def stop(self) -> None:
        """End `serve_pages`. Thread-safe."""
        self._console.is_over.set()
        self.should_exit = True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._console.is_over.set()  # open pages would delay the shutdown
        super().handle_exit(sig, frame)
