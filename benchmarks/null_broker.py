"""`python -m benchmarks.null_broker`: a minimal broker in asyncio. Prints the port it listens on.

It answers a pull with the records from standard input, and any other request with an acknowledgement.
"""

from __future__ import annotations

import asyncio
import json
import struct
import sys

import msgspec

from store.model.codes import RequestCode

_LENGTHS = struct.Struct(">ii")
_PULLED = {"suggestWhichBrokerId": "0", "nextBeginOffset": "32", "minOffset": "0", "maxOffset": "1000000"}
_SENT = {"msgId": "7F0000010000276A0000000000000000", "queueId": "0", "queueOffset": "0"}


class _Head(msgspec.Struct):
    code: int
    opaque: int


class _Broker(asyncio.Protocol):
    def __init__(self, body: bytes) -> None:
        self._body = body
        self._heads = {False: _head(_SENT), True: _head(_PULLED)}
        self._head = msgspec.json.Decoder(_Head)
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        data, at = self._buffer + data, 0
        answers: list[bytes] = []
        while len(data) >= at + _LENGTHS.size:
            length, header_bytes = _LENGTHS.unpack_from(data, at)
            if len(data) < at + 4 + length:
                break
            asked = self._head.decode(data[at + _LENGTHS.size : at + _LENGTHS.size + header_bytes])
            is_pull = asked.code == RequestCode.PULL_MESSAGE
            header = self._heads[is_pull] % asked.opaque
            body = self._body if is_pull else b""
            answers += _LENGTHS.pack(4 + len(header) + len(body), len(header)), header, body
            at += 4 + length
        self._buffer = data[at:]
        self._transport.write(b"".join(answers))


def _head(fields: dict[str, str]) -> bytes:
    head = {"code": 0, "extFields": fields, "flag": 1, "language": "OTHER", "opaque": -1, "version": 1}
    return json.dumps(head).replace("-1", "%d").encode()


async def _serve() -> None:
    body = sys.stdin.buffer.read()
    server = await asyncio.get_running_loop().create_server(lambda: _Broker(body), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve())
