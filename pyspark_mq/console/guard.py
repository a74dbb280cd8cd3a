"""Access to the console: a token for the browser, a second one for forms, and security headers for every page."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

from starlette.datastructures import URL, MutableHeaders, QueryParams
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

TOKEN_PARAMETER = "token"
CSRF_FIELD = "csrf"
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # Not "no-referrer": browsers would then send "Origin: null" with forms of this very page.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


_NEEDS_TOKEN = "This address lacks the console's token. Open the whole address that 'pyspark-mq console' printed."


class Forbidden(Exception):
    """Raised for a request without the token, or for a form that another site may have sent."""


class ConsoleKeys:
    """The secrets of a running console: `token` grants access, `csrf` is in each of its forms."""

    def __init__(self, token: str | None = None) -> None:
        self.token = token or secrets.token_urlsafe(24)
        self.csrf = secrets.token_urlsafe(24)

    def cookie_name(self, url: URL) -> str:
        """Return a name with the port, because browsers send a host's cookies to all of its ports."""
        return f"pyspark-mq-console-{url.port or 80}"

    def opens(self, given: str | None) -> bool:
        """Return whether `given` is the token, compared in constant time."""
        return given is not None and hmac.compare_digest(given.encode(), self.token.encode())

    def must_be_own_form(self, request: Request, form: Mapping[str, str]) -> None:
        """Raise `Forbidden` unless a page of this console sent the form."""
        origin = urlsplit(request.headers.get("origin", ""))
        is_own = (origin.scheme, origin.netloc) == (request.url.scheme, request.url.netloc)
        if not is_own or not hmac.compare_digest(form.get(CSRF_FIELD, "").encode(), self.csrf.encode()):
            raise Forbidden("This form was not sent by a page of this console. Reload the page, and send it again.")


Refuse = Callable[[Request, Exception], Response]


class Guard:
    """ASGI middleware that requires the token for pages, and adds security headers to every response.

    refuse: creates the response to a request without the token. Style sheets and scripts need no token.
    """

    def __init__(self, app: ASGIApp, keys: ConsoleKeys, refuse: Refuse) -> None:
        self._app = app
        self._keys = keys
        self._refuse = refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_restricted(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        if scope["type"] != "http":
            await self._app(scope, receive, send)
        else:
            await self._chosen(Request(scope))(scope, receive, send_restricted)

    def _chosen(self, request: Request) -> ASGIApp:
        if self._keys.opens(request.query_params.get(TOKEN_PARAMETER)):
            return self._welcome(request)
        name = self._keys.cookie_name(request.url)
        if request.url.path.startswith("/static/") or self._keys.opens(request.cookies.get(name)):
            return self._app
        return self._refuse(request, Forbidden(_NEEDS_TOKEN))

    def _welcome(self, request: Request) -> Response:
        """Move the token from the URL to a cookie, and redirect to the same page."""
        rest = QueryParams([pair for pair in request.query_params.multi_items() if pair[0] != TOKEN_PARAMETER])
        response = RedirectResponse(request.url.path + (f"?{rest}" if rest else ""), status_code=303)
        name = self._keys.cookie_name(request.url)
        response.set_cookie(name, self._keys.token, httponly=True, samesite="strict")
        return response
