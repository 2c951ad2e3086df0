"""Channels, buffers and messages of `adverb.session`."""

import gc
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from conftest import SECONDS, meet

import adverb
from adverb.session import Client, Endpoint, Server
from adverb.verbs import Access

Ends = tuple[Endpoint, Endpoint]


def test_a_message_is_received_in_the_memory_of_an_array(ends: Ends) -> None:
    near, far = ends
    source, sink = near.buffer(1, 64).at(0), far.buffer(1, 64).at(0)
    np.frombuffer(memoryview(source), np.int32)[:] = np.arange(16)
    arrived = np.frombuffer(memoryview(sink), np.int32)
    far.channel().post_recv(sink)
    near.channel().send(source.first(40), imm=7)
    event = far.channel().recv()
    assert (event.ok, event.bytes, event.imm, event.operation) == (True, 40, 7, "RECEIVE")
    assert list(arrived) == [*range(10), *[0] * 6]
    assert bytes(event.data) == bytes(source.first(40))


def test_reads_writes_and_atomics_touch_the_memory_that_was_advertised(ends: Ends) -> None:
    near, far = ends
    shared = far.buffer(4, 64)
    far.advertise("shared", shared)
    remote, local, channel = near.remote_buffer("shared"), near.buffer(1, 64).at(0), near.channel()
    assert (remote.blocks, remote.block_bytes) == (4, 64)
    local.write(b"written")
    channel.write(local.first(7), remote.at(2).part(8, 7))
    assert bytes(memoryview(shared)[136:143]) == b"written"
    shared.at(1).store_u64(0, 40)
    word = local.first(8)
    assert channel.fetch_add(word, remote.at(1), 2) == 40
    assert channel.compare_swap(word, remote.at(1), 42, 2**64 - 1) == 42
    assert shared.at(1).load_u64(0) == 2**64 - 1
    channel.read(local, remote.at(2))
    assert bytes(local)[8:15] == b"written"
    far.channel().post_recv(far.buffer(1, 8).at(0))
    channel.write(local.first(1), remote.at(3), imm=9)
    assert far.channel().recv().imm == 9


def test_posted_work_has_its_events(ends: Ends) -> None:
    near, far = ends
    far.advertise("shared", far.buffer(1, 64))
    channel, remote = near.channel(), near.remote_buffer("shared").at(0)
    blocks = near.buffer(8, 64)
    tickets = [channel.post_write(blocks.next(), remote) for _ in range(8)]
    with pytest.raises(adverb.Error, match="in use"):
        blocks.next()
    assert all(channel.wait(ticket).ok for ticket in tickets)
    assert blocks.next().index == 0
    channel.post_read(blocks.at(1), remote)
    channel.drain()
    event = channel.poll()
    assert event is not None and event.operation == "READ" and channel.poll() is None


@pytest.mark.parametrize("data", [b"", b"x" * 100, bytearray(3_000_000), np.arange(100_000.0)])
def test_a_messenger_carries_what_has_the_buffer_protocol(ends: Ends, data: bytes) -> None:
    near, far = ends
    opened: list[object] = []
    other = threading.Thread(target=lambda: opened.append(far.messenger()))
    other.start()
    messenger = near.messenger()
    other.join(SECONDS)
    messenger.send(data)
    received = opened[0].recv()
    assert isinstance(received, bytearray) and received == memoryview(data).cast("B")
    messenger.flush()


def test_an_array_that_is_not_contiguous_is_refused(ends: Ends) -> None:
    block = ends[0].buffer(1, 64).at(0)
    with pytest.raises(BufferError, match="ascontiguousarray"):
        block.write(np.arange(16, dtype=np.uint8)[::2])
    block.write(np.arange(16, dtype=np.uint8).reshape(4, 4))
    with pytest.raises(adverb.Error, match="63"):
        block.write(b"12", 63)
    with pytest.raises(adverb.Error):
        block.write(b"", 65)


def test_overlapping_memory_is_copied_as_if_by_way_of_another(ends: Ends) -> None:
    block = ends[0].buffer(1, 8).at(0)
    block.write(b"abcdefgh")
    block.write(block.first(6), 2)
    assert bytes(block) == b"ababcdef"


def test_memory_that_is_not_for_writing_is_lent_read_only(ends: Ends) -> None:
    near, _ = ends
    buffer = near.buffer(1, 64, access=Access.REMOTE_READ)
    assert memoryview(buffer).readonly and memoryview(buffer.at(0)).readonly
    with pytest.raises(adverb.Error, match="local write"):
        buffer.at(0).write(b"x")


def test_a_view_outlives_all_else() -> None:
    near, far = meet()
    view = np.frombuffer(memoryview(far.buffer(1, 1 << 20).at(0)), np.uint8)
    far.close()
    del near, far
    gc.collect()
    view[:] = 7
    assert view.sum() == 7 << 20


def test_work_in_flight_keeps_its_memory(ends: Ends) -> None:
    near, far = ends
    size, rounds = 1 << 20, 8
    for _ in range(rounds):
        far.channel().post_recv(far.buffer(1, size).at(0))  # No object of Python has it any more.
    gc.collect()
    source = near.buffer(1, size).at(0)
    memoryview(source)[:] = b"\x05" * size
    tickets = [near.channel().post_send(source) for _ in range(rounds)]
    del source
    gc.collect()
    for ticket in tickets:
        assert near.channel().wait(ticket).ok
    for _ in range(rounds):
        assert bytes(far.channel().recv().block) == b"\x05" * size


def test_memory_that_was_collected_is_out_of_the_peers_reach(ends: Ends) -> None:
    near, far = ends
    shared = far.buffer(1, 4096)
    far.advertise("shared", shared)
    remote, local = near.remote_buffer("shared").at(0), near.buffer(1, 4096).at(0)
    near.channel().write(local, remote)
    far.close()
    del shared, far
    gc.collect()
    fresh = [bytearray(4096) for _ in range(64)]
    with pytest.raises(adverb.Error):
        near.channel().write(local, remote)
    assert not any(map(any, fresh))


def test_waits_let_other_threads_run_and_end_in_time(ends: Ends) -> None:
    near, far = ends
    far.channel().post_recv(far.buffer(1, 8).at(0))
    steps = 0
    done = threading.Event()

    def count() -> None:
        nonlocal steps
        while not done.is_set():
            steps += 1
            time.sleep(0.001)

    counting = threading.Thread(target=count)
    counting.start()
    with pytest.raises(adverb.Timeout) as caught:
        far.channel().recv(timeout=0.3)
    done.set()
    counting.join(SECONDS)
    assert steps > 10 and isinstance(caught.value, TimeoutError) and "300ms" in str(caught.value)
    near.channel().send(near.buffer(1, 8).at(0))
    assert far.channel().recv().bytes == 8  # The channel goes on after a timeout.


def test_a_peer_that_goes_ends_the_wait_with_an_exception_of_its_own(ends: Ends) -> None:
    near, far = ends
    far.channel().post_recv(far.buffer(1, 8).at(0))
    threading.Timer(0.1, near.close).start()
    with pytest.raises(adverb.PeerGone) as caught:
        far.channel().recv()
    assert isinstance(caught.value, ConnectionError)


def test_an_interrupt_ends_a_wait() -> None:
    # What started the tests may ignore the signal, which children inherit.
    program = (
        "import signal\nfrom adverb.session import Server\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "s = Server('127.0.0.1:0')\nprint('up', flush=True)\ns.accept()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as child:
        try:
            assert child.stdout is not None and child.stdout.readline() == b"up\n"
            child.send_signal(signal.SIGINT)
            _, errors = child.communicate(timeout=SECONDS)
        finally:
            child.kill()
    assert b"KeyboardInterrupt" in errors


def test_mistakes_say_what_is_allowed(ends: Ends) -> None:
    near, _ = ends
    with pytest.raises(adverb.Error, match="data"):
        near.channel("no such")
    with pytest.raises(TypeError, match="send_depth"):
        Server("127.0.0.1:0", depth=3)
    with pytest.raises(ValueError, match="epoll"):
        Client(work_mode="idle")
    with pytest.raises(ValueError, match="seconds"):
        near.channel().drain(timeout=-1)
    with pytest.raises(adverb.Error, match="post_recv"):
        near.channel().recv()
    with pytest.raises(adverb.Timeout, match="no client"):
        Server("127.0.0.1:0").accept(timeout=0)
    with pytest.raises(adverb.Error, match="no server"):
        Client(connect_timeout=0.2).connect("127.0.0.1:9")


@pytest.mark.parametrize("mode", ["busy", "completion", "epoll"])
def test_every_way_to_wait_works(mode: str) -> None:
    near, far = meet(work_mode=mode, channels=["one", "two"], secret="known to both")
    assert near.channels == ["one", "two"] and near.path is not None
    for name in near.channels:
        far.channel(name).post_recv(far.buffer(1, 8).at(0))
        near.channel(name).send(near.buffer(1, 8).at(0))
        assert far.channel(name).recv().ok
    with near, far:
        pass
