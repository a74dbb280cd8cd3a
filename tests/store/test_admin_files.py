from __future__ import annotations

from pathlib import Path

import pytest

from store import CorruptStore
from store.admin_files import next_version, read_json, write_json


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ('{"offsetTable":{"TopicTest@grp":{0:12,1:7}}}', {"offsetTable": {"TopicTest@grp": {"0": 12, "1": 7}}}),
        ('{"offsetTable":{"TopicTest@grp":{"0":12}}}', {"offsetTable": {"TopicTest@grp": {"0": 12}}}),
        ('{\n\t"offsetTable":{1:5,3:7\n\t}\n}', {"offsetTable": {"1": 5, "3": 7}}),
        ('{"a{0:5}":"1:2 \\"3:4"}', {"a{0:5}": '1:2 "3:4'}),
    ],
)
def test_integer_keys_with_and_without_quotes(tmp_path: Path, text: str, content: dict[str, object]) -> None:
    path = tmp_path / "file.json"
    path.write_text(text)
    assert read_json(path) == content


@pytest.mark.parametrize("damage", ["missing", "", "{nonsense"])
def test_the_backup_stands_in(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "topics.json"
    write_json(path, {"a": 1})
    write_json(path, {"a": 2})
    if damage == "missing":
        path.unlink()
    else:
        path.write_text(damage)
    assert read_json(path) == {"a": 1}


def test_no_usable_file(tmp_path: Path) -> None:
    path = tmp_path / "topics.json"
    assert read_json(path) == {}
    path.write_text("{nonsense")
    with pytest.raises(CorruptStore, match=r"topics.json: not JSON .*, and no usable topics.json.bak; restore it"):
        read_json(path)


def test_versions_count(tmp_path: Path) -> None:
    content: dict[str, object] = {}
    next_version(content)
    next_version(content)
    version = content["dataVersion"]
    assert isinstance(version, dict)
    assert (version["counter"], version["stateVersion"]) == (2, 0)
    assert version["timestamp"] > 1_700_000_000_000
