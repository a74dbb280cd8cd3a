"""An S3 server (moto) in a thread of this process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

SECRET = "hush-hush"  # must not be in a log, message or checkpoint

WSGI = Callable[[dict[str, Any], Any], Iterable[bytes]]


@contextmanager
def s3_server(around: Callable[[WSGI], WSGI] = lambda app: app) -> Iterator[str]:
    """Yield the URL of a server. around: middleware that delays requests or lets them fail."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Quiet(WSGIRequestHandler):
        def log_request(self, *_: object) -> None:
            pass

    app = around(_one_write_at_a_time(DomainDispatcherApplication(create_backend_app)))
    server = make_server("127.0.0.1", 0, app, threaded=True, request_handler=Quiet)
    thread = threading.Thread(target=server.serve_forever, name="s3")
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def environment(endpoint: str) -> dict[str, str]:
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "tester",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_CONFIG_FILE": "/dev/null",
        "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
    }


def new_bucket() -> str:
    """Create a bucket and return its URL `s3://name`. Clears the cache of opened file systems."""
    from s3fs import S3FileSystem

    S3FileSystem.clear_instance_cache()
    name = f"test-{uuid4().hex}"
    S3FileSystem().mkdir(name)
    return f"s3://{name}"


def _one_write_at_a_time(app: WSGI) -> WSGI:
    """Serialize writes: S3's conditional writes are atomic, but moto checks first and writes later."""
    turn = threading.Lock()

    def guarded(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] in ("GET", "HEAD"):
            return app(environ, start_response)
        with turn:
            return list(app(environ, start_response))

    return guarded
