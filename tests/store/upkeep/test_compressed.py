from __future__ import annotations

import zlib
from pathlib import Path

import pytest

from store import Message, MessageStore, StoreConfig, UnreadableBody
from store.format.layout import RECORD_HEADER, SYS_COMPRESSED, field_offset, segment_name
from store.upkeep.verify import verify

SIZE = 4096
GOOD = zlib.compress(b"good" * 100)


@pytest.mark.parametrize(
    ("body", "flag", "said"),
    [
        (b"plain", SYS_COMPRESSED, "a zlib body of 5 bytes does not decompress"),
        (GOOD[:-1], SYS_COMPRESSED, "does not decompress"),
        (GOOD, SYS_COMPRESSED | 0x100, "a lz4 body"),
        (GOOD, SYS_COMPRESSED | 0x200, "a zstd body"),
        (GOOD, SYS_COMPRESSED | 0x400, "a compression type that RocketMQ 5.3 does not know"),
        (GOOD, SYS_COMPRESSED, None),
        (b"plain", 0x200, None),
        (zlib.compress(bytes(1 << 20)), SYS_COMPRESSED, None),
    ],
)
def test_corrupt_compressed_body_is_found(tmp_path: Path, body: bytes, flag: int, said: str | None) -> None:
    config = StoreConfig(mappedFileSizeCommitLog=SIZE, maxDecompressedMessageSize=1 << 16)
    with MessageStore.open(tmp_path, config=config) as store:
        store.create_topic("t", 1)
        puts = [store.put(Message("t", each)) for each in (b"x" * 3500, b"x", body, body, b"x")]
    for put in puts[2:4]:
        start = put.physical_offset // SIZE * SIZE
        with (tmp_path / "commitlog" / segment_name(start)).open("r+b") as file:
            file.seek(put.physical_offset - start + field_offset(RECORD_HEADER, "sys_flag"))
            file.write(flag.to_bytes(4, "big"))
    report = verify(tmp_path)
    found = report.findings
    if said is None:
        assert found == []
        return
    ((where, what, remedy),) = found
    first = puts[2].physical_offset
    assert where == f"commitlog/{segment_name(first // SIZE * SIZE)} @ {first % SIZE}"
    assert what.startswith("2 bodies cannot be read, though their checksums are right; the first: ")
    assert said in what
    assert remedy.startswith("none: its producer")
    assert not report.is_damaged
    with MessageStore.open(tmp_path, read_only=True) as store, pytest.raises(UnreadableBody, match=said):
        store.get_message("g", "t", 0, 2)
