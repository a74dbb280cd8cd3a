"""`NameServers`: requests to any name server, or to all of them."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress

from store.cluster.address import (
    ANSWER_SECONDS,
    FIRST_PAUSE_SECONDS,
    PAUSE_SECONDS,
    REQUEST_SECONDS,
    ClusterAddress,
)
from store.cluster.broker_refusals import explained, is_temporary
from store.model.codes import RequestCode, ResponseCode
from store.model.errors import Unreachable
from store.remoting.client import Client
from store.remoting.command import Command
from store.remoting.headers import Header

# A name server that does not know all brokers yet (needWaitForService) answers so. Retry only routes: with
# enableAllTopicList=false, a name server always refuses lists of topics with this code.
_NOT_READY = ResponseCode.SYSTEM_ERROR, RequestCode.GET_ROUTEINFO_BY_TOPIC


class NameServers:
    def __init__(self, address: ClusterAddress, client: Client) -> None:
        self._address = address
        self._client = client
        self._server = 0  # index of the name server that answered last

    def ask(
        self,
        code: RequestCode,
        header: Header | None = None,
        patience: float | None = None,
        answers: tuple[int, ...] = (),
    ) -> Command:
        """Send a request to the name server that answered last, or to another one if it does not answer.

        patience: seconds to retry, by default `ClusterAddress.patience`. answers: accepted codes beside SUCCESS. Raises
        `Unreachable`, `RequestRefused`.
        """
        servers = self._address.name_servers
        fields = self._address.signed({} if header is None else header.texts())
        patience = self._address.patience if patience is None else patience
        timeout = min(REQUEST_SECONDS, max(ANSWER_SECONDS, patience))
        deadline, pause = time.monotonic() + patience, FIRST_PAUSE_SECONDS
        while True:
            silent: list[str] = []
            for number in range(len(servers)):
                server = servers[(self._server + number) % len(servers)]
                try:
                    answer = self._client.ask(server, code, fields, timeout=timeout).result()
                except Unreachable as error:
                    silent.append(str(error))
                    continue
                refused = (
                    None
                    if answer.code in (ResponseCode.SUCCESS, *answers)
                    else explained(answer, f"name server {server}", code)
                )
                if refused is not None and (is_temporary(refused) or (refused.code, code) == _NOT_READY):
                    silent.append(str(refused))
                    continue
                self._server = (self._server + number) % len(servers)
                if refused is not None:
                    raise refused
                return answer
            if time.monotonic() >= deadline:
                raise Unreachable(f"no name server answers (option nameServer): {'; '.join(silent)}")
            time.sleep(pause)
            pause = PAUSE_SECONDS

    def ask_others(self, code: RequestCode, header: Header | None = None) -> list[Command]:
        """Return the successful answers of all name servers except the one that answered last."""
        others = [number for number in range(len(self._address.name_servers)) if number != self._server]
        return self._ask_each(others, code, header)

    def ask_all(self, code: RequestCode, header: Header | None = None) -> list[Command]:
        """Return the successful answers of all name servers."""
        return self._ask_each(range(len(self._address.name_servers)), code, header)

    def _ask_each(self, numbers: Iterable[int], code: RequestCode, header: Header | None) -> list[Command]:
        fields = self._address.signed({} if header is None else header.texts())
        servers = [self._address.name_servers[number] for number in numbers]
        asked = [self._client.ask(each, code, fields, timeout=ANSWER_SECONDS) for each in servers]
        answers = []
        for answer in asked:
            with suppress(Unreachable):
                answers.append(answer.result())
        return [answer for answer in answers if answer.code == ResponseCode.SUCCESS]
