"""Transactional messages of remote producers: prepare, commit, roll back, and check."""

from __future__ import annotations

import logging
import random
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

from store.broker.half_messages import Half
from store.broker.transactions import Outcome, Transactions, as_committed
from store.format.layout import HALF_TOPIC, PROPERTY_PRODUCER_GROUP, PROPERTY_REAL_TOPIC, PROPERTY_TRANSACTION
from store.format.message import Message
from store.format.stored_message import StoredMessage, decode_record, offset_msg_id
from store.model.codes import CommandFlag, RequestCode, ResponseCode
from store.model.errors import RequestRefused, StoreError, UnknownQueue, UnknownTopic
from store.remoting.appending import Fields
from store.remoting.command import Command
from store.remoting.headers import CheckTransactionState, EndTransaction
from store.remoting.request import Handler, Request, Response
from store.remoting.rights import Perm, of_topic
from store.remoting.served_broker import ServedBroker

_logger = logging.getLogger("store.remoting")
_COMMIT, _ROLL_BACK, _UNKNOWN = 8, 12, 0


def is_half(message: Message) -> bool:
    return message.properties.get(PROPERTY_TRANSACTION, "").lower() == "true"


class ServedTransactions:
    """The transactions of all producer groups. One thread runs their steps."""

    def __init__(self, broker: ServedBroker) -> None:
        self._store = broker.store
        self._clients = broker.clients
        self._access = broker.access
        self._immunity_seconds = broker.config.transactionTimeOut / 1000
        self._max_checks = broker.config.transactionCheckMax
        self._thread = ThreadPoolExecutor(1, "mq-transactions")
        self._groups: dict[str, Transactions] = {}

    def quick_handlers(self) -> Mapping[int, Handler]:
        return {RequestCode.END_TRANSACTION: self._end_soon}

    def prepare(self, group: str, message: Message, fields: Fields, new_queues: int) -> Future[Half]:
        """Append a half message. new_queues: see `Appending.append`."""
        own = {name: value for name, value in message.properties.items() if name != PROPERTY_TRANSACTION}
        return self._thread.submit(self._prepare, group, replace(message, properties=own), fields, new_queues)

    def check(self) -> None:
        """Ask the connected producers about their open half messages. Call it regularly.

        Requests of clients that arrive during a check are handled between two groups.
        """
        with suppress(RuntimeError):  # the thread has ended
            for group in self._thread.submit(self._asked).result():
                self._thread.submit(self._check, group).result()

    def stop(self) -> None:
        self._thread.shutdown()

    # --- in the thread -----------------------------------------------------------------------------------

    def _of(self, group: str) -> Transactions:
        if group not in self._groups:
            self._groups[group] = Transactions(self._store, group)
        return self._groups[group]

    def _prepare(self, group: str, message: Message, fields: Fields, new_queues: int) -> Half:
        transactions = self._of(group)
        try:
            return transactions.prepare([message], fields)[0]
        except UnknownQueue:
            raise
        except UnknownTopic:
            if not new_queues:
                raise
            self._store.create_topic(message.topic, new_queues)
            return transactions.prepare([message], fields)[0]

    def _end_soon(self, request: Request) -> Future[Response]:
        header = EndTransaction.of(request.command.fields)
        return self._thread.submit(self._end, request, header)

    def _end(self, request: Request, header: EndTransaction) -> Response:
        offset = header.commit_log_offset
        half = decode_record(self._store.record_at(offset), f"commit log offset {offset}")
        said = half.topic, half.properties.get(PROPERTY_PRODUCER_GROUP), half.queue_offset
        if said != (HALF_TOPIC, header.producer_group, header.tran_state_table_offset):
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"commit log offset {offset} is no half message of group {header.producer_group} at queue offset "
                f"{header.tran_state_table_offset}",
            )
        self._access.must_have(request, of_topic(half.properties.get(PROPERTY_REAL_TOPIC, ""), Perm.PUB))
        ended = [Half(half.msg_id, half.queue_offset, offset)]
        if header.commit_or_rollback == _COMMIT:
            self._of(header.producer_group).commit(ended)
        elif header.commit_or_rollback == _ROLL_BACK:
            self._of(header.producer_group).roll_back(ended)
        elif header.commit_or_rollback != _UNKNOWN:
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, f"commitOrRollback is {header.commit_or_rollback}")
        return Response()

    def _asked(self) -> list[str]:
        try:
            self._store.max_offset(HALF_TOPIC, 0)
        except UnknownTopic:
            return []
        present = self._clients.producer_groups()
        self._groups = {group: each for group, each in self._groups.items() if group in present}
        return present

    def _check(self, group: str) -> None:
        """Ask the producers of a group about its open half messages.

        As in RocketMQ, the check is counted first, which appends the half message again, at a new place. Producers that
        do not read are skipped, because the questions would stay in memory.
        """
        producers = [each.connection for each in self._clients.producers(group).values()]
        reading = [connection for connection in producers if not connection.is_stuck_writing]
        if not reading:
            return
        immunity = self._immunity_seconds
        try:
            transactions = self._of(group)
            transactions.check(lambda message: Outcome.UNKNOWN, immunity, self._max_checks + 1)
            for half, message in transactions.open(immunity):
                random.choice(reading).send_soon(self._question(half, message))
        except StoreError as error:
            _logger.warning("transactions of group %s: %s; tried again later", group, error)

    def _question(self, half: Half, message: StoredMessage) -> Command:
        header = CheckTransactionState(
            half.queue_offset,
            half.physical_offset,
            half.transaction_id,
            half.transaction_id,
            offset_msg_id(*self._store.config.store_host, half.physical_offset),
            message.topic,
        )
        body = as_committed(self._store, half, message)
        return Command(RequestCode.CHECK_TRANSACTION_STATE, header.texts(), body, flag=CommandFlag.ONEWAY)
