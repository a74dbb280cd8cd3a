from __future__ import annotations

import struct
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.model.errors import BadFrame
from store.remoting.command import MAX_FRAME_BYTES, Frames

FRAMES = st.lists(st.binary(min_size=1, max_size=40), max_size=6)


@given(FRAMES, st.lists(st.integers(0, 300), max_size=12))
def test_stream_may_be_split_anywhere(sent: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(struct.pack(">i", len(frame)) + frame for frame in sent)
    bounds = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    frames = Frames()
    came = [frame for begin, end in pairwise(bounds) for frame in frames.feed(stream[begin:end])]
    assert came == sent
    assert not frames


@given(st.binary(min_size=1, max_size=40), st.data())
def test_unfinished_frame_is_pending(frame: bytes, data: st.DataObject) -> None:
    stream = struct.pack(">i", len(frame)) + frame
    frames = Frames()
    assert frames.feed(stream[: data.draw(st.integers(1, len(stream) - 1))]) == []
    assert frames


@pytest.mark.parametrize("length", [0, -1, MAX_FRAME_BYTES - 3, int.from_bytes(b"GET ", "big")])
def test_impossible_length_is_refused_at_once(length: int) -> None:
    with pytest.raises(BadFrame, match="another protocol"):
        Frames().feed(struct.pack(">i", length))


def test_largest_frame_is_accepted() -> None:
    frames = Frames()
    assert frames.feed(struct.pack(">i", MAX_FRAME_BYTES - 4)) == []
    (frame,) = frames.feed(bytes(MAX_FRAME_BYTES - 4))
    assert len(frame) == MAX_FRAME_BYTES - 4
