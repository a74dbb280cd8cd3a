"""Delete a topic so that a new topic of its name restarts at 0, as RocketMQ and older versions of this project do."""

from __future__ import annotations

import json
import os
from pathlib import Path

from store.api.message_store import delete_topic
from store.format.layout import TOPICS_FILE


def delete_as_broker(path: str | os.PathLike[str], topic: str) -> None:
    """Delete a topic without keeping the ends of its queues."""
    delete_topic(path, topic)
    file = Path(path) / TOPICS_FILE
    content = json.loads(file.read_text())
    content["deletedTopics"][topic]["queueEnds"] = []
    del content["deletedTopicsCrc"]
    file.with_suffix(".new").write_text(json.dumps(content))
    file.with_suffix(".new").replace(file)
