"""The web server of one console."""

from __future__ import annotations

import socket
from types import FrameType

import uvicorn

from pyspark_mq.console.access import TOKEN_PARAMETER, ConsoleKeys
from pyspark_mq.console.pages import console_app
from store.model.log_protocol import LogAddress


class ConsoleServer(uvicorn.Server):
    """Serves a log's console at `url` while `serve` runs. The port is taken, and the log is open, from the start.

    interval: seconds between two looks at the log.
    """

    def __init__(
        self, address: LogAddress, host: str, port: int, *, interval: float, allow_changes: bool = False
    ) -> None:
        keys = ConsoleKeys()
        app, self._pages = console_app(address, keys, interval=interval, allow_changes=allow_changes)
        # No access log: it would show the token.
        super().__init__(uvicorn.Config(app, log_level="error", access_log=False, timeout_graceful_shutdown=2))
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, port), family=family)
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{self._listener.getsockname()[1]}/?{TOKEN_PARAMETER}={keys.token}"

    def serve_pages(self) -> None:
        """Serve until `stop`, or a signal."""
        try:
            self.run([self._listener])
        finally:
            self._listener.close()

    def stop(self) -> None:
        """End `serve_pages`; any thread may call it."""
        self._pages.is_over.set()
        self.should_exit = True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._pages.is_over.set()  # or else open pages would keep it
        super().handle_exit(sig, frame)
