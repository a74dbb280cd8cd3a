from __future__ import annotations

import json
import os
import tempfile
import time
import warnings
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from store import CorruptStore, MessageStore, StoreConfig, StoreError
from store.disk.admin_files import MAX_BYTES, next_version, number, offset_table, read_json, table, write_json
from store.disk.consumer_offsets import ConsumerOffsets, delay_offsets
from store.format.layout import CONSUMER_OFFSETS_FILE, DELAY_OFFSETS_FILE, GROUPS_FILE, TOPIC_MAPPINGS_FILE, TOPICS_FILE
from store.upkeep.verify import verify


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ('{"offsetTable":{"TopicTest@grp":{0:12,1:7}}}', {"offsetTable": {"TopicTest@grp": {"0": 12, "1": 7}}}),
        ('{"offsetTable":{"TopicTest@grp":{"0":12}}}', {"offsetTable": {"TopicTest@grp": {"0": 12}}}),
        ('{\n\t"offsetTable":{1:5,3:7\n\t}\n}', {"offsetTable": {"1": 5, "3": 7}}),
        ('{"a":{-1:5,"-1":-1}}', {"a": {"-1": -1}}),
        ('{"a{0:5}":"1:2 \\"3:4"}', {"a{0:5}": '1:2 "3:4'}),
    ],
)
def test_integer_keys_may_lack_quotes(tmp_path: Path, text: str, content: dict[str, object]) -> None:
    path = tmp_path / "file.json"
    path.write_text(text)
    assert read_json(path) == content


@pytest.mark.parametrize("damage", ["", "{nonsense"])
def test_backup_replaces_a_damaged_file(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "topics.json"
    write_json(path, {"a": 1})
    write_json(path, {"a": 2})
    path.write_text(damage)
    what = "empty, perhaps after a crash" if damage == "" else "not JSON"
    with pytest.warns(UserWarning, match=rf"topics.json: {what}.*topics.json.bak is used, which is older"):
        assert read_json(path) == {"a": 1}


@pytest.mark.parametrize("written", [1, 2])
def test_backup_replaces_a_lost_file(tmp_path: Path, written: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """No warning comes within the time that a replacement takes. The first write makes a backup, too. Otherwise a group
    that committed once would start as a new group."""
    path, now = tmp_path / "topics.json", time.time
    for value in (1, 2)[:written]:
        write_json(path, {"a": value})
    path.unlink()
    assert read_json(path) == {"a": 1}
    monkeypatch.setattr(time, "time", lambda: now() + 2)
    with pytest.warns(
        UserWarning, match=r"topics.json: missing; its backup topics.json.bak is used, which may be older. Res"
    ):
        assert read_json(path) == {"a": 1}


def test_empty_file_without_a_backup_is_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "topics.json"
    path.touch()
    with pytest.warns(
        UserWarning, match=r"topics.json: empty, perhaps after a crash; it has no backup topics.json.bak"
    ):
        assert read_json(path) == {}


def test_missing_file_is_empty(tmp_path: Path) -> None:
    path = tmp_path / "topics.json"
    assert read_json(path) == {}
    path.write_text("{nonsense")
    with pytest.raises(
        CorruptStore, match=r"topics.json: not JSON .*, and topics.json.bak cannot be used instead. Restore one"
    ):
        read_json(path)


def test_version_increases_with_each_write(tmp_path: Path) -> None:
    content: dict[str, object] = {}
    next_version(Path("file"), content)
    next_version(Path("file"), content)
    version = content["dataVersion"]
    assert isinstance(version, dict)
    assert (version["counter"], version["stateVersion"]) == (2, 0)
    assert version["timestamp"] > 1_700_000_000_000


@pytest.mark.parametrize(
    "damage",
    [
        b"\xff{}",
        b"[]",
        b"5",
        b"null",
        b'{"a": NaN}',
        b'{"a": -Infinity}',
        b'{"a": 1e999}',
        b"[" * 100_000,
        b'{"a": 1' + b"0" * 5000,
        b'{"a": ' + b"9" * 40_000 + b"}",
        b"{" + b"9" * 40_000 + b": 1}",
    ],
)
def test_wrong_json_is_an_error_without_a_backup(tmp_path: Path, damage: bytes) -> None:
    path, since = tmp_path / "topics.json", time.process_time()
    path.write_bytes(damage)
    with pytest.raises(
        CorruptStore, match=r"topics\.json: not JSON .*, and topics\.json\.bak cannot be used instead. Restore one"
    ):
        read_json(path)
    path.with_name("topics.json.bak").write_text('{"a": 1}')
    with pytest.warns(UserWarning, match="is used, which is older"):
        assert read_json(path) == {"a": 1}
    assert time.process_time() - since < 1


def test_huge_file_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "topics.json"
    path.touch()
    os.truncate(path, 3 << 30)
    with pytest.raises(
        CorruptStore, match=rf"topics\.json: 3,221,225,472 bytes, more than the allowed {MAX_BYTES:,}. Restore the file"
    ):
        read_json(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"t": []}, r"file: t is a list, not an object. Correct the file, or restore it from a copy"),
        ({"t": {"a": 5}}, r"file: t\['a'\] is 5, not an object"),
        ({"t": {"a": None}}, r"file: t\['a'\] is null, not an object"),
        ({"t": "x" * 99}, rf'file: t is "{"x" * 39}, not an object'),
    ],
)
def test_wrong_tables_are_refused(content: dict[str, Any], message: str) -> None:
    with pytest.raises(CorruptStore, match=message):
        table(Path("file"), content, "t")


def test_missing_or_null_table_is_empty(tmp_path: Path) -> None:
    content: dict[str, Any] = {"t": None}
    table(Path("file"), content, "t")["a"] = {}
    table(Path("file"), content, "u")
    assert content == {"t": {"a": {}}, "u": {}}


def test_numbers_are_checked() -> None:
    path = Path("file")
    assert number(path, "n", 5) == number(path, "n", "5") == 5
    assert offset_table(path, "o", {"0": 1 << 40, "7": "12"}) == {0: 1 << 40, 7: 12}
    assert offset_table(path, "o", None) == {}
    for wrong in (-1, 1 << 31, "1" * 20, "", "x", "٣", 1.5, True, None, [], {}):
        with pytest.raises(CorruptStore, match=r"file: n is .*, not a number from 0 to 2147483647"):
            number(path, "n", wrong)
    for table_, where in (({"x": 1}, "a key of o"), ({"0": -1}, r"o\['0'\]"), ([], "o is a list")):
        with pytest.raises(CorruptStore, match=f"file: {where}"):
            offset_table(path, "o", table_)


FILES: dict[str, dict[str, Any]] = {
    TOPICS_FILE: {
        "dataVersion": {"counter": 3, "stateVersion": 0, "timestamp": 1690000000000},
        "topicConfigTable": {
            "orders": {"attributes": {"+queue.type": "SimpleCQ"}, "perm": 6, "readQueueNums": 2, "writeQueueNums": 2}
        },
    },
    CONSUMER_OFFSETS_FILE: {"dataVersion": {"counter": 1}, "offsetTable": {"orders@g": {"0": 12, "1": 7}}},
    GROUPS_FILE: {"dataVersion": {"counter": 1}, "subscriptionGroupTable": {"g": {"groupName": "g"}}},
    DELAY_OFFSETS_FILE: {"dataVersion": {"counter": 1}, "offsetTable": {"3": 1}},
    TOPIC_MAPPINGS_FILE: {"dataVersion": {}, "topicQueueMappingInfoMap": {"static": {"topic": "static"}}},
}
SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(["../up", "a/b", "\0", "9"])
)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(SCALARS.map(str), inner), max_leaves=8)


def places(content: object) -> list[tuple[str, ...]]:
    """Return the paths of all values in a JSON file, including the root."""
    below = content.items() if isinstance(content, dict) else ()
    return [(), *((key, *path) for key, value in below for path in places(value))]


def replaced(content: Any, path: tuple[str, ...], value: object, *, key: bool) -> Any:
    """Return `content` with `value` at `path`, or with `path`'s last key renamed to `value` if `key` is true."""
    if not path:
        return value
    name, *rest = path
    if key and not rest:
        return {**content, str(value): content[name]}
    return {**content, name: replaced(content[name], tuple(rest), value, key=key)}


def use_all(root: Path) -> None:
    """Call everything that reads or writes the files. Each call succeeds or raises a StoreError."""
    groups = ConsumerOffsets(root)
    for act in (
        groups.names,
        partial(delay_offsets, root),
        lambda: groups.offsets("g", "orders"),
        lambda: groups.settings.of("g"),
        lambda: groups.settings.create("h"),
        lambda: verify(root),
    ):
        with suppress(StoreError):
            act()
    for read_only in (True, False):
        with suppress(StoreError), MessageStore.open(root, read_only=read_only) as store:
            use(store)


def use(store: MessageStore) -> None:
    with suppress(StoreError):
        for topic, queues in store.topics().items():
            assert queues == 0 or store.offsets(topic, queues - 1) == (0, 0)
    with suppress(StoreError):
        store.consumer_offset("g", "orders", 0)
    with suppress(StoreError):
        store.commit_offsets("g", "orders", {0: 5})
    for topic in ("new", "orders"):
        with suppress(StoreError):
            store.create_topic(topic, 4)


@settings(max_examples=int(os.environ.get("ADMIN_FILES_EXAMPLES", "60")), deadline=None)
@given(data=st.data())
def test_any_json_gives_a_result_or_a_store_error(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(FILES)))
    path = data.draw(st.sampled_from(places(FILES[name])))
    content = replaced(FILES[name], path, data.draw(VALUES), key=data.draw(st.booleans()))
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        root = Path(folder, "store")
        MessageStore.open(root, config=StoreConfig(mappedFileSizeCommitLog=4096, messageIndexEnable=False)).close()
        for file, usual in {**FILES, name: content}.items():
            (root / file).write_text(json.dumps(usual))
        use_all(root)
