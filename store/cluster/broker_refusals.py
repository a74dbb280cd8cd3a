"""Refusals of brokers and name servers: which are temporary, and the remedies that errors name."""

from __future__ import annotations

from store.model.codes import RequestCode, ResponseCode
from store.model.errors import RemotingError, RequestRefused, Unreachable
from store.remoting.command import Command

# RocketMQ's clients retry after these codes (retryResponseCodes without those of invalid requests) and flow control.
_PASSING = frozenset(
    {
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
        ResponseCode.FLOW_CONTROL,
        ResponseCode.GO_AWAY,
    }
)

_REMEDIES = {
    ResponseCode.SYSTEM_ERROR: "see the broker's log",
    ResponseCode.SYSTEM_BUSY: "the broker is busy, or it is a slave that must not be read (slaveReadEnable=false). Use "
    "fewer tasks, or give the broker more resources",
    ResponseCode.FLOW_CONTROL: "the broker limits its load. Use fewer tasks",
    ResponseCode.SERVICE_NOT_AVAILABLE: "the broker is starting or stopping, or its disk is full. See its log",
    ResponseCode.NO_PERMISSION: "the account, the topic or the broker does not allow this. Check accessKey and "
    "secretKey, consumerGroup (the group of the reads), the topic's perm, and the broker's brokerPermission",
    ResponseCode.TOPIC_NOT_EXIST: "check the name of the topic, and the name server",
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: "create the consumer group (mqadmin updateSubGroup), or set "
    "autoCreateSubscriptionGroup=true on the broker",
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: "this is another kind of server (name servers listen on 9876 by default, "
    "brokers on 10911), or a version before 4.9",
    ResponseCode.MESSAGE_ILLEGAL: "the broker does not accept the message. Check its maxMessageSize",
}


def is_temporary(error: RemotingError) -> bool:
    return isinstance(error, Unreachable) or (isinstance(error, RequestRefused) and error.code in _PASSING)


def explained(answer: Command, who: str, code: int, what: object = None) -> RequestRefused:
    """Return the error for a refusal, with a remedy if one is known.

    who: the server that refused. code: of the request. what: its queue or topic.
    """
    remark = (answer.remark or "no remark").strip().partition("\n")[0][:300].rstrip(".")
    means = ResponseCode(answer.code) if answer.code in _KNOWN else ResponseCode.SYSTEM_ERROR
    if means is ResponseCode.SYSTEM_ERROR and _OF_ACCOUNTS in remark:
        means = ResponseCode.NO_PERMISSION
    remedy = _REMEDIES.get(means)
    asked = f"{RequestCode(code).name if code in _CODES else int(code)}{'' if what is None else f' of {what}'}"
    return RequestRefused(answer.code, remark if remedy is None else f"{remark}; {remedy}", f"{who}, {asked}: ")


_OF_ACCOUNTS = "AclException"  # in the remark; RocketMQ 4 reports it as SYSTEM_ERROR
_KNOWN = frozenset(ResponseCode)
_CODES = frozenset(RequestCode)
