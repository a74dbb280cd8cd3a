"""A schema registry with the two requests of docs/howto/use-a-schema-registry.md."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@contextmanager
def schema_registry() -> Iterator[str]:
    """Give the registry's address. The id of a schema is its place, from 7 on."""
    schemas: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            schema = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["schema"]
            if schema not in schemas:
                schemas.append(schema)
            self._answer({"id": 7 + schemas.index(schema)})

        def do_GET(self) -> None:
            self._answer({"schema": schemas[int(self.path.removeprefix("/schemas/ids/")) - 7]})

        def log_message(self, *arguments: object) -> None:
            pass

        def _answer(self, answer: object) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(answer).encode())

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
