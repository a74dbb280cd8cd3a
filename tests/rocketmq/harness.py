"""RocketMQ as the reference: its own store, broker and client (src/, built by Maven) on test directories.

`read` and `write` start a short-lived JVM each, which prints JSON lines. They change the directory as RocketMQ does on
opening it: pass a copy if that matters. `broker` runs until its block ends.
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import json
import os
import random
import select
import shutil
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any, NoReturn

from store.archive.catalog import INDEX_SLOTS

HERE = Path(__file__).parent
LINES = ("5.5", "5.4", "5.3", "5.1", "4.9", "4.3")
"""RocketMQ release lines, newest first; pom.xml names the exact versions."""
USUAL_LINES = ("5.5", "4.9")
"""The lines of a run that names none: the newest, and the last one before RocketMQ 5."""

# RocketMQ 4 unmaps files through JDK internals.
JVM_OPTIONS = (
    "-Xmx1g",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "-Drocketmq.client.logUseSlf4j=true",
)
COMMAND_SECONDS = 300

Json = dict[str, Any]


class HarnessError(Exception):
    """RocketMQ refused the request; the message ends with its own error."""


def unavailable() -> str | None:
    """Return why RocketMQ cannot run here, or None if it can."""
    missing = [tool for tool in ("java", "mvn") if shutil.which(tool) is None]
    return f"needs {' and '.join(missing)}: install a JDK 17+ and Maven" if missing else None


def put(topic: str, body: bytes = b"", queue_id: int = 0, **fields: Any) -> Json:
    """Return a message for `write`. `fields` are Put's in Spec.java; a batch is `put(topic, batch=[put(...), ...])`."""
    return {"topic": topic, "queueId": queue_id, "body": base64.b64encode(body).decode(), **fields}


def chosen_lines() -> tuple[str, ...]:
    """Return the release lines of ROCKETMQ_LINES: `make test-rocketmq LINES=all`, or LINES="5.3 4.3"."""
    asked = os.environ.get("ROCKETMQ_LINES", "").split() or list(USUAL_LINES)
    unknown = set(asked) - {*LINES, "all"}
    if unknown:
        raise ValueError(f"ROCKETMQ_LINES: {', '.join(sorted(unknown))} is not one of {', '.join(LINES)}, all")
    return tuple(line for line in LINES if line in asked or "all" in asked)


class Running:
    """A JVM that takes requests as lines; iterate over its answers as they arrive."""

    def __init__(self, process: subprocess.Popen[str], words: IO[bytes]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process = process
        self._requests, self._words = process.stdin, words
        self._answers = process.stdout.fileno()
        self._read = b""
        self._turn = threading.Lock()  # a thread may iterate while the block is left
        self._is_left = False

    def ask(self, verb: str, **fields: Any) -> None:
        """Send a request with the fields of the Java class that answers."""
        print(json.dumps({"verb": verb, **fields}), file=self._requests, flush=True)

    def __iter__(self) -> Iterator[Json]:
        return self

    def __next__(self) -> Json:
        with self._turn:
            while b"\n" not in self._read:
                if not select.select([self._answers], [], [], COMMAND_SECONDS)[0]:
                    self.kill()
                    self._fail(f"it said nothing for {COMMAND_SECONDS} s")
                more = os.read(self._answers, 1 << 16)
                if not more:
                    self._process.wait(COMMAND_SECONDS)
                    if self._is_left:
                        raise StopIteration
                    self._fail("it ended")
                self._read += more
            line, _, self._read = self._read.partition(b"\n")
        answer: Json = json.loads(line)
        return answer

    def _fail(self, what: str) -> NoReturn:
        self._words.seek(0)
        raise HarnessError(f"{what}:\n{_tail(self._words.read())}")

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(COMMAND_SECONDS)

    def leave(self) -> None:
        """Halt everything: an orderly shutdown of RocketMQ's services takes twenty seconds."""
        self._is_left = True
        self._requests.close()
        for _ in self:  # a full pipe would block the JVM
            pass
        self._process.wait(COMMAND_SECONDS)


class Broker(Running):
    """A running broker. Requests have the fields of Request in Spec.java.

    send answers "sent" for each acknowledged message, then "done", in the background; consume "consumed" for each
    message, then "done"; look lines as of `RocketMQ.read` and the admin tool's answers, then "done". clean, tidy,
    describe, persist and stop answer "cleaned", "tidied", "described", "persisted" and "stopped"; produce "done".
    """


class Clients(Running):
    """RocketMQ's producer, consumers and admin tool in one JVM; requests: see RemoteClient.java."""

    def answers(self, verb: str, **fields: Any) -> list[Json]:
        """Return the answers up to "done". Raises `HarnessError` if the request failed."""
        self.ask(verb, **fields)
        found: list[Json] = []
        for answer in self:
            if answer["kind"] == "failed":
                raise HarnessError(f"{verb} {fields}: {answer['why']}")
            if answer["kind"] == "done":
                return [*found, answer] if len(answer) > 1 else found
            found.append(answer)
        return found


_given: set[int] = set()


def free_ports() -> dict[str, int]:
    """Return free ports for the name server and for the broker, which also uses the port two below."""
    broker = free_port(-2)
    return {"namesrvPort": free_port(), "brokerPort": broker}


def free_port(*also: int) -> int:
    """Return an unused port, as are those at the distances `also`.

    It is never an ephemeral port, a port in the range of another test process, or one returned before.
    """
    first = 12_000 + 2_500 * (int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % 8)
    while True:
        port = random.randrange(first + 2, first + 2_500)
        wanted = {port, *(port + distance for distance in also)}
        with suppress(OSError), ExitStack() as taken:
            for each in wanted - _given:
                taken.enter_context(socket.create_server(("127.0.0.1", each), reuse_port=False))
            if wanted.isdisjoint(_given):
                _given.update(wanted)
                return port


class RocketMQ:
    """A release line of RocketMQ, built on first use and again when pom.xml or src/ changed."""

    def __init__(self, line: str) -> None:
        self.line = line
        self._target = HERE / "target" / line
        self._home = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self._target.parent.mkdir(exist_ok=True)
        with open(self._target.with_name(f"{line}.lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._build()

    def write(
        self,
        directory: Path,
        puts: Sequence[Json],
        config: Mapping[str, object] | None = None,
        exit: str = "clean",
        batch_topics: Sequence[str] = (),
    ) -> list[Json]:
        """Put every message in order with DefaultMessageStore; return RocketMQ's answer to each.

        `config` has MessageStoreConfig's keys; `exit` is "clean" or "halt" (the process ends, abort stays).
        """
        spec = {"puts": puts, "config": _strings(config), "exit": exit, "batchTopics": batch_topics}
        return self._run("write", directory, spec)

    def read(
        self,
        directory: Path,
        config: Mapping[str, object] | None = None,
        queries: Sequence[Json] = (),
        shutdown: bool = False,
        batch_topics: Sequence[str] = (),
    ) -> list[Json]:
        """Return the lines of RocketMQ's own reader: of kind log, queue, message, then one for each query.

        File sizes of log and queues are taken from the directory. Index files do not record theirs: pass maxHashSlotNum
        and maxIndexNum in `config`. A query asks by key ({"topic", "key"[, "max", "begin", "end"]}), by id ({"id"}: the
        broker's offsetMsgId) or by time ({"topic", "queueId", "time"[, "boundary": "LOWER" "UPPER"]}).
        """
        spec = {
            "config": _strings(config),
            "queries": queries,
            "shutdown": shutdown,
            "batchTopics": batch_topics,
        }
        return self._run("read", directory, spec)

    def conditions(self, expressions: Sequence[str], property_sets: Sequence[Mapping[str, str]]) -> list[Json]:
        """Evaluate SQL92 expressions with RocketMQ's filter module.

        Each result has either "refused", the parser's error, or "results", one letter for each set of properties: T
        true, F false, N null, E an exception.
        """
        return self._run("conditions", HERE, {"expressions": expressions, "propertySets": property_sets})

    def frames(self) -> list[Json]:
        """Return frames that RocketMQ 5's own code encodes, and its codes; see Frames.java."""
        return self.run("Frames")

    def run(self, main: str, *arguments: str) -> list[Json]:
        """Return the lines that a class of the harness prints."""
        done = subprocess.run(self._java(main, *arguments), capture_output=True, timeout=COMMAND_SECONDS, check=False)
        if done.returncode != 0:
            raise HarnessError(f"RocketMQ {self.line}, {main}:\n{_tail(done.stderr)}")
        return [json.loads(line) for line in done.stdout.splitlines()]

    def tiered(
        self,
        verb: str,
        archive: Path,
        root: Path,
        records: Sequence[Json] = (),
        *,
        broker: str = "broker-a",
        log_bytes: int = 4096,
        queue_bytes: int = 200,
        slots: int = INDEX_SLOTS,
    ) -> list[Json]:
        """Run RocketMQ's tiered store, from 5.3 on, on files below `archive`, with metadata in `root`; see Tiered.java.

        records: messages to write, or a query's requests.
        """
        command = self._java("Tiered", verb, str(archive), str(root), "DefaultCluster", broker)
        lines = "".join(json.dumps(record) + "\n" for record in records).encode()
        sizes = [str(log_bytes), str(queue_bytes), str(slots)]
        done = subprocess.run(
            [*command, *sizes], input=lines, capture_output=True, timeout=COMMAND_SECONDS, check=False
        )
        if done.returncode != 0:
            raise HarnessError(f"RocketMQ {self.line}, tiered {verb}:\n{_tail(done.stderr)}")
        return [json.loads(line) for line in done.stdout.splitlines()]

    @contextmanager
    def clients(
        self, name_server: str, account: tuple[str, str] | None = None, *, tls: bool = False
    ) -> Iterator[Clients]:
        """Run RocketMQ's own clients with a name server; leaving the block halts them, as a kill does.

        account: the access key and secret key for their signatures.
        """
        with tempfile.TemporaryFile() as words:
            process = subprocess.Popen(
                self._java("RemoteClient", name_server, *(account or ()), properties={"tls.enable": tls}),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=words,
                text=True,
            )
            clients = Clients(process, words)
            try:
                yield clients
            finally:
                clients.leave()

    @contextmanager
    def broker(
        self,
        directory: Path,
        config: Mapping[str, object] | None = None,
        *,
        properties: Any = None,
        **live: Any,
    ) -> Iterator[Broker]:
        """Run a name server and a broker on `directory`; leaving the block halts both, as a kill does.

        `live` are the fields of Live in Spec.java: topic, queues, bodyBytes, brokerConfig, authConfig; free ports are
        chosen. `properties` are system properties of its JVM.
        """
        with (
            _spec_file({"config": _strings(config), "live": {**free_ports(), **live}}) as spec,
            tempfile.TemporaryFile() as words,
        ):
            process = subprocess.Popen(
                self._java("Main", "broker", str(directory), str(spec), properties=properties),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=words,
                text=True,
            )
            broker = Broker(process, words)
            try:
                assert next(broker)["kind"] == "ready"
                yield broker
            finally:
                broker.leave()

    def daemon(self, main: str, settings: Path) -> subprocess.Popen[bytes]:
        """Start RocketMQ 5's own `namesrv.NamesrvStartup` or `broker.BrokerStartup`.

        settings: the file for its option -c. Its output is appended to a file beside that one.
        """
        home = {"rocketmq.home.dir": settings.parent, "user.home": settings.parent}
        with open(settings.with_suffix(".out"), "ab") as output:
            command = self._java(f"org.apache.rocketmq.{main}", "-c", str(settings), properties=home)
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)

    def _run(self, verb: str, directory: Path, spec: Json) -> list[Json]:
        with _spec_file(spec) as spec_path:
            done = subprocess.run(
                self._java("Main", verb, str(directory), str(spec_path)),
                capture_output=True,
                timeout=COMMAND_SECONDS,
                check=False,
            )
        if done.returncode != 0:
            raise HarnessError(f"RocketMQ {self.line}, {verb} {directory}:\n{_tail(done.stderr)}")
        return [json.loads(line) for line in done.stdout.splitlines()]

    def _java(self, main: str, *arguments: str, properties: Mapping[str, object] | None = None) -> list[str]:
        classpath = f"{self._target / 'classes'}{os.pathsep}{(self._target / 'classpath.txt').read_text()}"
        given = {"tls.enable": False, "user.home": self._home.name, **(properties or {})}
        return [
            "java",
            *JVM_OPTIONS,
            *(f"-D{name}={value}" for name, value in _strings(given).items()),
            "-cp",
            classpath,
            main if "." in main else f"mq.harness.{main}",
            *arguments,
        ]

    def _build(self) -> None:
        digest = hashlib.sha256()
        for source in [HERE / "pom.xml", *sorted(path for path in (HERE / "src").rglob("*") if path.is_file())]:
            digest.update(source.read_bytes())
        stamp = self._target / "built"
        if stamp.exists() and stamp.read_text() == digest.hexdigest():
            return
        pom = str(HERE / "pom.xml")
        command = ["mvn", "-q", "-B", "-f", pom, "-P", f"rocketmq-{self.line}", "clean", "process-classes"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise HarnessError(f"{' '.join(command)}:\n{_tail((done.stdout + done.stderr).encode())}")
        stamp.write_text(digest.hexdigest())


@contextmanager
def _spec_file(spec: Json) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "spec.json"
        path.write_text(json.dumps(spec))
        yield path


def _strings(config: Mapping[str, object] | None) -> dict[str, str]:
    """Convert values to strings, with booleans as Java spells them."""
    return {k: str(v).lower() if isinstance(v, bool) else str(v) for k, v in (config or {}).items()}


def _tail(words: bytes, lines: int = 40) -> str:
    return "\n".join(words.decode(errors="replace").splitlines()[-lines:])
