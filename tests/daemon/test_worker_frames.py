from __future__ import annotations

import socket
from itertools import pairwise
from multiprocessing.connection import Connection

from agentserve.daemon.workers.process import Frames
from hypothesis import given
from hypothesis import strategies as st


def wire(messages: list[bytes]) -> bytes:
    """What `multiprocessing.connection.Connection` writes for these messages."""
    ours, theirs = socket.socketpair()
    with ours, theirs, Connection(ours.detach()) as connection:
        for message in messages:
            connection.send_bytes(message)
        return theirs.recv(1 << 20)


@given(st.lists(st.binary(max_size=300), max_size=6), st.lists(st.integers(0, 2000)))
def test_messages_come_out_whole_however_the_stream_is_cut(messages: list[bytes], cuts: list[int]) -> None:
    stream = wire([*messages, b"end"])
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    frames = Frames()
    pieces = [stream[start:end] for start, end in pairwise(edges)]
    assert [frame for piece in pieces for frame in frames.feed(piece)] == [*messages, b"end"]
