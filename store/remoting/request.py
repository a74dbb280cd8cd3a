"""A request, its response, and the responses to errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, NamedTuple

from store.format.strict_json import encode
from store.model.codes import ResponseCode
from store.model.errors import (
    BadFrame,
    FilterError,
    GroupConflict,
    InvalidArgument,
    InvalidGroup,
    InvalidMessageId,
    InvalidTopic,
    MessageRefused,
    OffsetOutOfRange,
    RequestRefused,
    StoreBusy,
    StoreError,
    TransactionEnded,
    UnknownGroup,
    UnknownQueue,
    UnknownTopic,
)
from store.remoting.command import Bytes, Command
from store.remoting.connection import Connection
from store.remoting.headers import Header


class Request(NamedTuple):
    command: Command
    connection: Connection


@dataclass(slots=True)
class Response:
    """The response to a request. body: pieces, to be concatenated."""

    code: int = ResponseCode.SUCCESS
    remark: str | None = None
    header: Header | None = None
    body: Sequence[Bytes] = ()


Handler = Callable[[Request], Any]  # returns a Response, or a Future of one
Answer = Response | Future[Any]  # a Future of a Response, or of another such Future

_CODES: tuple[tuple[tuple[type[StoreError], ...], ResponseCode], ...] = (
    ((UnknownQueue, InvalidArgument, InvalidGroup, InvalidTopic, InvalidMessageId), ResponseCode.INVALID_PARAMETER),
    ((UnknownTopic,), ResponseCode.TOPIC_NOT_EXIST),
    ((UnknownGroup,), ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
    ((GroupConflict,), ResponseCode.ILLEGAL_OPERATION),
    ((MessageRefused,), ResponseCode.MESSAGE_ILLEGAL),
    ((FilterError,), ResponseCode.SUBSCRIPTION_PARSE_FAILED),
    ((OffsetOutOfRange,), ResponseCode.QUERY_NOT_FOUND),
    ((StoreBusy,), ResponseCode.SYSTEM_BUSY),
    ((BadFrame, TransactionEnded), ResponseCode.SYSTEM_ERROR),
)


def refusal(error: StoreError) -> Response:
    if isinstance(error, RequestRefused):
        return Response(error.code, error.remark)
    code = next((code for kinds, code in _CODES if isinstance(error, kinds)), ResponseCode.SERVICE_NOT_AVAILABLE)
    return Response(code, str(error))


def of_json(content: object) -> Response:
    return Response(body=(encode(content),))
