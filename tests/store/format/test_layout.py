"""What RocketMQ wrote, byte for byte, read through the dtypes."""

from __future__ import annotations

import numpy as np
import pytest

from store.format import layout
from store.format.layout import BLANK, CQ_ENTRY, INDEX_HEADER, RECORD_HEADER, RECORD_HEADERS, field_offset, segment_name
from tests.store.golden_bytes import BLANK_BYTES, CQ_FIRST, CQ_PRE_BLANK, INDEX_HEADER_BYTES, V1, V1_BORN_V6


def test_segment_name_is_its_start_in_20_digits() -> None:
    assert segment_name(0) == "0" * 20
    assert segment_name(1 << 30) == "00000000001073741824"


def test_record_header_of_rocketmq() -> None:
    header = np.frombuffer(V1, RECORD_HEADER, 1)[0]
    assert header["total_size"] == len(V1) == 0x90
    assert header["magic"] == layout.MAGIC_V1
    assert header["queue_id"] == header["queue_offset"] == header["physical_offset"] == header["sys_flag"] == 0
    assert header["flag"] == 7
    assert header["born_ip"].tolist() == [10, 1, 2, 3]
    assert header["born_port"] == 54321
    assert header["store_ip"].tolist() == [127, 0, 0, 1]
    assert header["store_port"] == 10911
    assert header["body_length"] == len(b"hello-0-")


def test_record_header_with_an_ipv6_born_host() -> None:
    header = np.frombuffer(V1_BORN_V6, RECORD_HEADERS[1][0], 1)[0]
    assert header["sys_flag"] == layout.SYS_BORN_HOST_V6
    assert header["born_ip"].tobytes().hex() == "20010db8000000000000000000000001"
    assert header["physical_offset"] == 17679
    assert header["queue_offset"] == 20
    assert header["body_length"] == 2


def test_queue_entries_of_rocketmq() -> None:
    first, blank = np.frombuffer(CQ_FIRST + CQ_PRE_BLANK, CQ_ENTRY)
    assert first.item() == (0, 0x90, 2598919)
    assert blank.item() == (0, layout.CQ_PRE_BLANK_SIZE, 0)


def test_blank_and_index_header_of_rocketmq() -> None:
    assert np.frombuffer(BLANK_BYTES, BLANK)[0].item() == (4096 - 3882, layout.MAGIC_BLANK)
    header = np.frombuffer(INDEX_HEADER_BYTES, INDEX_HEADER)[0]
    assert header["end_offset"] == 0x4738
    assert (header["slots_used"], header["next_entry"]) == (75, 122)


@pytest.mark.parametrize("v6_born", [0, 1])
@pytest.mark.parametrize("v6_store", [0, 1])
def test_hosts_push_back_only_what_follows_them(v6_born: int, v6_store: int) -> None:
    header = RECORD_HEADERS[v6_born][v6_store]
    pushed = {name: field_offset(header, name) - field_offset(RECORD_HEADER, name) for name in header.names or ()}
    assert pushed["born_ip"] == 0
    assert pushed["born_port"] == pushed["store_ip"] == 12 * v6_born
    assert pushed["store_port"] == pushed["body_length"] == 12 * v6_born + 12 * v6_store
