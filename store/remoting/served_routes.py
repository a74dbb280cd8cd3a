"""Answers of a name server, whose only broker is this one, and the status of that broker."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping

from store.format.layout import SYSTEM_TOPICS
from store.model.codes import RequestCode, ResponseCode
from store.model.errors import RequestRefused
from store.remoting.headers import GetRoute
from store.remoting.request import Handler, Request, Response, of_json
from store.remoting.rights import of_topic
from store.remoting.served_broker import ServedBroker

DEFAULT_TOPIC = "TBW102"  # producers use its route for missing topics
NEW_TOPIC_QUEUES = 8  # of a topic that is created by its first message, at most (defaultTopicQueueNums)
READ_WRITE = 6
_INHERIT = 1


class Routes:
    """The routes of a name server that knows one broker, at the address by which a client reached it."""

    def __init__(self, broker: ServedBroker) -> None:
        self._store = broker.store
        self._broker = broker.name
        self._own_topics = broker.config.own_topics
        self._cluster = broker.config.brokerClusterName
        self._create_topics = broker.config.autoCreateTopicEnable
        self._access = broker.access

    def handlers(self) -> Mapping[int, Handler]:
        return {
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self._route,
            RequestCode.GET_BROKER_CLUSTER_INFO: self._cluster_info,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self._topics,
            RequestCode.GET_TOPICS_BY_CLUSTER: self._topics,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: self._system_topics,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: self._system_topics,
            RequestCode.GET_KVLIST_BY_NAMESPACE: self._no_settings,
            RequestCode.GET_KV_CONFIG: self._no_settings,
        }

    def _route(self, request: Request) -> Response:
        topic = GetRoute.of(request.command.fields).topic
        queues, perm = self._store.topics().get(topic, 0), READ_WRITE
        if not queues and topic in self._own_topics:
            queues, perm = self._own_topics[topic], READ_WRITE | _INHERIT
        if topic == DEFAULT_TOPIC and self._create_topics:
            queues, perm = max(queues, NEW_TOPIC_QUEUES), READ_WRITE | _INHERIT
        if not queues:
            raise RequestRefused(
                ResponseCode.TOPIC_NOT_EXIST, f"No topic route info in name server for the topic: {topic}"
            )
        queue_data = {
            "brokerName": self._broker,
            "perm": perm,
            "readQueueNums": queues,
            "topicSysFlag": 0,
            "writeQueueNums": queues,
        }
        return of_json(
            {"brokerDatas": [self._broker_data(request)], "filterServerTable": {}, "queueDatas": [queue_data]}
        )

    def _broker_data(self, request: Request) -> dict[str, object]:
        return {
            "brokerAddrs": {"0": request.connection.here},
            "brokerName": self._broker,
            "cluster": self._cluster,
            "enableActingMaster": False,
        }

    def _cluster_info(self, request: Request) -> Response:
        brokers = {self._broker: self._broker_data(request)}
        return of_json({"brokerAddrTable": brokers, "clusterAddrTable": {self._cluster: [self._broker]}})

    def _topics(self, request: Request) -> Response:
        topics = [topic for topic in self._store.topics() if self._access.has(request, of_topic(topic))]
        return of_json({"topicList": topics})

    def _system_topics(self, request: Request) -> Response:
        return of_json(
            {"topicList": sorted({*SYSTEM_TOPICS, *self._own_topics}), "brokerAddr": request.connection.here}
        )

    def _no_settings(self, request: Request) -> Response:
        return Response(ResponseCode.QUERY_NOT_FOUND, "no settings are kept here")


_VERSION = "V5_3_3"


class Status:
    """The broker's runtime status. RocketMQ's values that this server does not count are left out."""

    def __init__(self, broker: ServedBroker) -> None:
        self._store = broker.store
        self._names = f"brokerName={broker.name}\nbrokerClusterName={broker.config.brokerClusterName}\nbrokerId=0\n"
        self._began = int(time.time() * 1000)

    def handlers(self) -> Mapping[int, Handler]:
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
        first = self._store.first_message()
        return -1 if first is None else first.store_timestamp  # as in RocketMQ
