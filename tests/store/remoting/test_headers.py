from __future__ import annotations

from typing import Any, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import asdict

from store.model.codes import Language, RequestCode, ResponseCode
from store.model.errors import RequestRefused
from store.remoting import headers
from store.remoting.headers import (
    CommitOffset,
    EndTransaction,
    GetRoute,
    Header,
    PullMessage,
    SendMessage,
    SendMessageV2,
)
from tests.store.remoting.golden import CODES, FRAMES

OF_CODE: dict[int, type[Header]] = {
    RequestCode.GET_ROUTEINFO_BY_TOPIC: GetRoute,
    RequestCode.SEND_MESSAGE: SendMessage,
    RequestCode.SEND_MESSAGE_V2: SendMessageV2,
    RequestCode.SEND_BATCH_MESSAGE: SendMessageV2,
    RequestCode.PULL_MESSAGE: PullMessage,
    RequestCode.END_TRANSACTION: EndTransaction,
}
LONGS = st.integers(-(1 << 63), (1 << 63) - 1)
MADE = [line for line in FRAMES if line["code"] in OF_CODE and line["fields"]]


def test_codes_equal_rocketmqs() -> None:
    assert {code.name: code.value for code in RequestCode}.items() <= CODES["requests"].items()
    assert {code.name: code.value for code in ResponseCode}.items() <= CODES["responses"].items()
    assert {code.name: code.value for code in Language} == CODES["languages"]


@pytest.mark.parametrize("line", MADE, ids=lambda line: f"{line['serialization']}-{line['code']}")
def test_headers_of_rocketmq_are_read(line: dict[str, Any]) -> None:
    header = OF_CODE[line["code"]].of(line["fields"])
    assert line["fields"].items() <= header.texts().items()
    further = header.texts().keys() - line["fields"].keys()
    assert further <= {"acceptStandardJsonOnly"}


def test_every_code_with_a_header_is_compared() -> None:
    assert {line["code"] for line in MADE} == set(OF_CODE)


def test_one_letter_names_have_the_same_meaning() -> None:
    long, short = (next(line["fields"] for line in MADE if line["code"] == code) for code in (10, 310))
    one, other = SendMessage.of(long), SendMessageV2.of(short)
    assert {name: value for name, value in asdict(other).items() if name != "broker_name"} == asdict(one)
    assert (one.queue_id, one.flag, one.batch, one.max_reconsume_times) == (2, -5, False, 16)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"consumerGroup": "g", "topic": "t", "queueId": "1"}, "the custom field <commitOffset> is null"),
        (
            {"consumerGroup": "g", "topic": "t", "queueId": "one", "commitOffset": "1"},
            r"wrong: .* got `str` .*\.queueId",
        ),
        (
            {"consumerGroup": "g", "topic": "t", "queueId": "1", "commitOffset": str(1 << 63)},
            "<= .*commitOffset",
        ),
        (
            {"consumerGroup": "g", "topic": "t", "queueId": "1", "commitOffset": "9" * 10_000},
            "range .*commitOffset",
        ),
        ({"consumerGroup": "g", "topic": "t", "queueId": "\u0661", "commitOffset": "1"}, "queueId"),
    ],
)
def test_missing_or_wrong_field_is_named(fields: dict[str, str], why: str) -> None:
    with pytest.raises(RequestRefused, match=why) as refused:
        CommitOffset.of(fields)
    assert refused.value.code == ResponseCode.SYSTEM_ERROR


@given(st.data())
def test_header_survives_encoding(data: st.DataObject) -> None:
    kinds = [kind for kind in vars(headers).values() if isinstance(kind, type) and issubclass(kind, Header)]
    kind = data.draw(st.sampled_from([kind for kind in kinds if kind is not Header]))
    numbers = {name: LONGS for name, hint in get_type_hints(kind).items() if "int" in str(hint)}
    header = data.draw(st.builds(kind, **numbers))
    assert kind.of(header.texts()) == header
