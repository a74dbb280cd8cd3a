"""What a broker says of itself."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping

from store.api.message_store import MessageStore
from store.model.log_protocol import Queue
from store.remoting.codes import RequestCode
from store.remoting.request import Handler, Request, Response, of_json

_VERSION = "V5_3_3"


class Status:
    """Runtime information and settings. What RocketMQ counts and this does not is left out."""

    def __init__(self, store: MessageStore, broker: str, cluster: str) -> None:
        self._store = store
        self._names = f"brokerName={broker}\nbrokerClusterName={cluster}\nbrokerId=0\n"
        self._began = int(time.time() * 1000)

    def others(self) -> Mapping[int, Handler]:
        """Handlers that may wait."""
        return {
            RequestCode.GET_BROKER_RUNTIME_INFO: self._runtime_info,
            RequestCode.GET_BROKER_CONFIG: self._settings,
        }

    def _settings(self, request: Request) -> Response:
        return Response(body=((self._names + self._store.config.text()).encode(),))

    def _runtime_info(self, request: Request) -> Response:
        disk = shutil.disk_usage(self._store.path)
        end = self._store.confirm_offset
        table = {
            "bootTimestamp": self._began,
            "brokerActive": "true",
            "brokerVersionDesc": _VERSION,
            "commitLogDirCapacity": f"Total : {disk.total}, Free : {disk.free}.",
            "commitLogDiskRatio": disk.used / disk.total,
            "commitLogMaxOffset": end,
            "dispatchBehindBytes": end - self._store.dispatched_offset,
            "earliestMessageTimeStamp": self._earliest(),
        }
        return of_json({"table": {name: str(value) for name, value in table.items()}})

    def _earliest(self) -> int:
        """The store time of the oldest message; -1 without one."""
        queues = [Queue(topic, id) for topic, count in self._store.topics().items() for id in range(count)]
        bounds = self._store.bounds(queues)
        firsts = {queue: first for queue, (first, end) in bounds.items() if first < end}
        return min((each.store_timestamp for each in self._store.fingerprints(firsts).values()), default=-1)
