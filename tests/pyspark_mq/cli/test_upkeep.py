import os
from pathlib import Path

from store import Message, MessageStore, StoreConfig
from tests.pyspark_mq.cli.process import run, succeed


def test_clean_deletes_old_segments(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with MessageStore.open(
        path, config=StoreConfig(mappedFileSizeCommitLog=4096, mappedFileSizeConsumeQueue=100)
    ) as store:
        store.create_topic("orders", 1)
        store.put_many([Message("orders", bytes(1000)) for _ in range(36)])
    segments = sorted((path / "commitlog").iterdir())
    for segment in segments[:6]:
        os.utime(segment, (0, 0))

    nothing = "0 log segments, 0 queue files and 0 index files, 0 bytes"
    assert succeed("clean", path, "--reserved-hours", 1000000).startswith(nothing)
    would = succeed("clean", path, "--dry-run")
    assert would.splitlines()[:6] == [f"would delete {segment}" for segment in segments[:6]]
    assert sorted((path / "commitlog").iterdir()) == segments
    lines = succeed("clean", path).splitlines()
    assert lines[:6] == [f"deleted {segment}" for segment in segments[:6]]
    assert [line.split("/")[-2] for line in lines[6:9]] == ["0", "0", "0"]
    assert lines[9].startswith("6 log segments, 3 queue files and 0 index files, ")
    assert sorted((path / "commitlog").iterdir()) == segments[6:]
    with MessageStore.open(path, read_only=True) as reader:
        assert reader.offsets("orders", 0) == (18, 36)

    done = succeed("clean", f"file:{path}", "--force")
    assert "5 log segments" in done
    assert "stay" not in done
    assert sorted((path / "commitlog").iterdir()) == segments[11:]

    with MessageStore.open(path) as store:
        store.put(Message("orders", b"later", delay_level=18))
        store.put_many([Message("orders", bytes(1000)) for _ in range(9)])
    done = succeed("clean", path, "--force")
    assert done.endswith(
        "\n3 more segments stay, because they have messages that are not archived or not delivered yet\n"
    )


def test_verify_finds_and_repairs(path: Path) -> None:
    succeed("send", path, "orders", *"abcdef", "--queue", 1)
    assert succeed("verify", path) == "6 records, 588 bytes, 1 queues: no findings\n"
    (queue_file,) = (path / "consumequeue/orders/1").iterdir()
    with queue_file.open("r+b") as file:
        file.seek(40)
        file.write(bytes(20))
    done = run("verify", path)
    assert (done.returncode, done.stderr) == (1, "")
    assert [line.split("  ") for line in done.stdout.splitlines()[1:]] == [
        ["topic orders, queue 1, offset 2", "1 messages have no entry in the queue", "verify --repair"],
        ["6 records, 588 bytes, 1 queues: 1 findings"],
    ]
    done = run("verify", path, "--repair")
    assert done.returncode == 0
    assert done.stdout.endswith("after the repair:\n6 records, 588 bytes, 1 queues: no findings\n")
    assert run("verify", path, "--mend").returncode == 2


def test_verify_takes_the_index_sizes_of_a_broker(tmp_path: Path) -> None:
    theirs = Path(__file__).parents[2] / "golden" / "index-5.3"
    (tmp_path / "broker.conf").write_text("maxHashSlotNum=20\nmaxIndexNum=30\n")
    assert "Set both as in the settings of the broker that wrote the file" in run("verify", theirs).stdout
    assert succeed("verify", theirs, "--config", tmp_path / "broker.conf").endswith("no findings\n")


def test_verify_names_damage_that_it_cannot_repair(path: Path) -> None:
    succeed("send", path, "orders", *"abcdef", "--queue", 1)
    (segment,) = (path / "commitlog").iterdir()
    with segment.open("r+b") as file:
        file.seek(98 * 3 + 88)
        file.write(b"!")
    done = run("verify", path, "--repair")
    assert done.returncode == 1
    assert done.stdout.count("98 bytes up to log offset 392 cannot be read  restore the file from a copy") == 2
    assert "Error: " in done.stderr
