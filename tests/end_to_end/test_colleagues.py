"""A directory with several users: members of its group can write all files, others none."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from store import Message, MessageStore, StoreConfig, StoreUnavailable
from store.disk.atomic import make_folder, open_file
from store.upkeep.verify import verify
from tests.children import in_a_child

SMALL = StoreConfig(mappedFileSizeCommitLog=4096, mappedFileSizeConsumeQueue=200, maxHashSlotNum=50, maxIndexNum=60)
ALICE, BOB, STRANGER = 12001, 12002, 12003  # users, each with a group of the same id
TEAM = 13000
needs_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root can become another user: run this as root, in CI too"
)


def as_user(user: int, groups: list[int], umask: int, work: Callable[[], object]) -> str:
    """Return the text of `work`'s result in a process of that user."""

    def as_that_user() -> object:
        os.setgroups(groups)
        os.setgid(user)
        os.setuid(user)
        os.umask(umask)
        return work()

    return in_a_child(as_that_user)


def use(path: Path) -> int:
    with MessageStore.open(path, config=SMALL) as store:
        store.create_topic("t", 2)
        for _ in range(3):
            store.put_many([Message("t", bytes(300), keys=(f"k{number}",)) for number in range(20)])
        store.commit_offsets("g", "t", {0: 1})
        store.clean(forced=True)
    return sum(store_offsets(path))


def store_offsets(path: Path) -> list[int]:
    with MessageStore.open(path, read_only=True) as reader:
        assert len(reader.query("t", "k19")) > 0
        return [reader.max_offset("t", queue) for queue in range(2)]


@pytest.fixture(scope="module", autouse=True)
def everything_is_loaded(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Import everything: another user may not be able to read this user's modules."""
    assert use(tmp_path_factory.mktemp("first") / "mq") == 60


@pytest.fixture
def shared() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="mq-colleagues-", dir=os.environ.get("PYTEST_DEBUG_TEMPROOT")))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def modes(path: Path) -> dict[str, set[str]]:
    entries = [path, *path.rglob("*")]
    return {
        "files": {oct(stat.S_IMODE(each.stat().st_mode)) for each in entries if each.is_file()},
        "folders": {oct(stat.S_IMODE(each.stat().st_mode)) for each in entries if each.is_dir()},
    }


def refused(told: str, path: Path) -> bool:
    """Return whether the result is a StoreError that names the path and a remedy."""
    return told.startswith("StoreUnavailable") and str(path) in told and "get permission from its owner" in told


@needs_root
@pytest.mark.parametrize("umask", [0o022, 0o002, 0o077])
@pytest.mark.parametrize("mode", [0o770, 0o2770, 0o775, 0o2775])
def test_member_of_the_group_can_write(shared: Path, mode: int, umask: int) -> None:
    path = shared / "mq"
    path.mkdir()
    os.chown(path, ALICE, TEAM)
    path.chmod(mode)
    assert as_user(ALICE, [TEAM], umask, lambda: use(path)) == "60"
    assert as_user(BOB, [TEAM], umask, lambda: use(path)) == "120"
    assert as_user(ALICE, [TEAM], umask, lambda: use(path)) == "180"
    assert verify(path).findings == []
    assert {each.stat().st_gid for each in path.rglob("*")} == {TEAM}
    assert modes(path) == {"files": {oct(mode & 0o664)}, "folders": {oct(mode)}}
    told = as_user(STRANGER, [], umask, lambda: store_offsets(path))
    assert told.startswith("[") if mode & 0o005 else refused(told, path)
    assert refused(as_user(STRANGER, [], umask, lambda: use(path)), path)


@needs_root
def test_files_created_by_root_belong_to_the_directorys_owner(shared: Path) -> None:
    path = shared / "mq"
    path.mkdir(mode=0o700)
    os.chown(path, ALICE, ALICE)
    assert as_user(ALICE, [], 0o022, lambda: use(path)) == "60"
    assert use(path) == 120
    assert {(each.stat().st_uid, each.stat().st_gid) for each in path.rglob("*")} == {(ALICE, ALICE)}
    assert as_user(ALICE, [], 0o022, lambda: use(path)) == "180"
    assert modes(path) == {"files": {"0o600"}, "folders": {"0o700"}}


@needs_root
@pytest.mark.parametrize(("mode", "rights"), [(0o770, {"0o600", "0o700"}), (0o775, {"0o644", "0o755"})])
def test_group_without_the_creator_gets_no_rights(shared: Path, mode: int, rights: set[str]) -> None:
    """The files belong to the creator's own group, with the rights that the directory gives to all users."""
    path = shared / "mq"
    path.mkdir()
    os.chown(path, ALICE, TEAM)
    path.chmod(mode)
    assert as_user(ALICE, [], 0o022, lambda: use(path)) == "60"
    assert {each.stat().st_gid for each in path.rglob("*")} == {ALICE}
    assert {oct(stat.S_IMODE(each.stat().st_mode)) for each in path.rglob("*")} == rights


@pytest.mark.parametrize("umask", [0o022, 0o002, 0o077])
@pytest.mark.parametrize("mode", [0o700, 0o750, 0o755, 0o770, 0o2775, 0o777])
def test_new_files_inherit_the_directorys_rights(tmp_path: Path, mode: int, umask: int) -> None:
    root = tmp_path / "root"
    root.mkdir()
    root.chmod(mode)
    before = os.umask(umask)
    try:
        make_folder(root / "a" / "b")
        os.close(open_file(root / "a" / "b" / "file"))
        (root / "old").touch(0o640)
        os.close(open_file(root / "old"))
    finally:
        os.umask(before)
    for folder in (root / "a", root / "a" / "b"):
        assert stat.S_IMODE(folder.stat().st_mode) == mode & 0o2775
    assert stat.S_IMODE((root / "a" / "b" / "file").stat().st_mode) == mode & 0o664
    assert stat.S_IMODE((root / "old").stat().st_mode) == 0o640 & ~umask, "an existing file keeps its rights"
    with pytest.raises(StoreUnavailable, match="File exists"):
        open_file(root / "old", os.O_EXCL)
    with pytest.raises(StoreUnavailable, match="File exists"):
        make_folder(root / "old")


@needs_root
def test_store_works_below_an_unlistable_folder(shared: Path) -> None:
    path = shared / "mq"
    path.mkdir()
    os.chown(path, ALICE, ALICE)
    shared.chmod(0o711)
    assert as_user(ALICE, [], 0o022, lambda: use(path)) == "60"
