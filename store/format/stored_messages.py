"""Many messages that you get, from the columns of their records."""

from __future__ import annotations

from store.format.columns import Block
from store.format.properties import decode_properties
from store.format.stored_message import StoredMessage


def stored_messages(block: Block) -> list[StoredMessage]:
    """The messages of a block, in order, as `decode_record` makes them one by one: bodies as they are stored.

    But those of a light queue have its number.
    """

    def column(name: str) -> list[str]:
        return block.column(name).to_pylist()  # type: ignore[no-any-return]

    def field(name: str) -> list[int]:
        return block.field(name).tolist()  # type: ignore[no-any-return]

    columns = (
        column("topic"),
        column("queueId"),
        column("queueOffset"),
        column("physicalOffset"),
        column("msgId"),
        column("body"),
        map(decode_properties, block.encoded_properties.to_pylist()),
        field("born_timestamp"),
        field("store_timestamp"),
        column("bornHost"),
        column("storeHost"),
        field("reconsume_times"),
        field("flag"),
        field("sys_flag"),
        field("body_crc"),
        field("prepared_transaction_offset"),
        [""] * len(block),
    )
    return list(map(StoredMessage._make, zip(*columns, strict=True)))
