"""Tasks of asyncio that wait on channels."""

import asyncio
import subprocess
import sys
from collections.abc import Coroutine
from typing import Any

import numpy as np
import pytest
from conftest import SECONDS

import adverb
from adverb.session import Client, Endpoint, Server


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(main, SECONDS))


async def meet() -> tuple[Endpoint, Endpoint]:
    server = Server("127.0.0.1:0")
    return await asyncio.gather(Client().connect_async(server.address), server.accept_async())


def test_many_tasks_wait_on_one_thread() -> None:
    async def main() -> None:
        near, far = await meet()
        far.advertise("shared", far.buffer(1, 8))
        remote = (await near.remote_buffer_async("shared")).at(0)
        channel = near.channel().asynchronous()
        words = near.buffer(32, 8)
        adds = (channel.fetch_add(words.at(n), remote, 1) for n in range(32))
        assert sorted(await asyncio.gather(*adds)) == list(range(32))
        assert await channel.compare_swap(words.at(0), remote, 32, 0) == 32
        await channel.write(words.at(0), remote)
        await channel.read(words.at(1), remote)
        assert words.at(1).load_u64(0) == 32
        await near.close_async()

    run(main())


def test_a_wait_that_is_cancelled_has_taken_nothing() -> None:
    async def main() -> None:
        near, far = await meet()
        inbox, channel = far.buffer(1, 8).at(0), far.channel().asynchronous()
        far.channel().post_recv(inbox)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(channel.recv(), 0.1)
        await near.channel().asynchronous().send(near.buffer(1, 8).at(0), imm=3)
        assert (await channel.recv()).imm == 3

    run(main())


def test_messages_are_awaited() -> None:
    async def main() -> None:
        near, far = await meet()
        open_both = (asyncio.to_thread(end.messenger) for end in (near, far))
        one, two = [messenger.asynchronous() for messenger in await asyncio.gather(*open_both)]
        sent = np.arange(500_000.0)
        _, received = await asyncio.gather(one.send(sent), two.recv())
        assert np.array_equal(np.frombuffer(received), sent)
        await one.flush()

    run(main())


def test_errors_are_raised_where_they_are_awaited() -> None:
    async def main() -> None:
        near, far = await meet()
        far.channel().post_recv(far.buffer(1, 8).at(0))
        waiting = far.channel().asynchronous().recv()
        await near.close_async()
        with pytest.raises(adverb.PeerGone):
            await waiting

    run(main())


def test_a_loop_that_ends_leaves_its_tasks() -> None:
    async def main() -> None:
        server = Server("127.0.0.1:0")
        asyncio.ensure_future(server.accept_async())
        await asyncio.sleep(0.01)

    for _ in range(3):
        run(main())


def test_without_a_loop_there_is_nothing_to_await() -> None:
    with pytest.raises(RuntimeError, match="no running event loop"):
        Server("127.0.0.1:0").accept_async()


ENDS_AT_ONCE = """
import asyncio
from adverb.session import Client, Server

async def main():
    server = Server("127.0.0.1:0")
    near, far = await asyncio.gather(Client().connect_async(server.address), server.accept_async())
    far.advertise("counter", far.buffer(1, 8))
    counter = (await near.remote_buffer_async("counter")).at(0)
    channel, words = near.channel().asynchronous(), near.buffer(8, 8)
    await asyncio.gather(*(channel.fetch_add(words.at(n), counter, 1) for n in range(8)))

asyncio.run(main())
"""

FORKS = """
import adverb, asyncio, os
from adverb.session import Client, Server

async def main():
    server = Server("127.0.0.1:0")
    await asyncio.gather(Client().connect_async(server.address), server.accept_async())

asyncio.run(main())

async def fails():
    try:
        await asyncio.wait_for(Client(connect_timeout=0.2).connect_async("127.0.0.1:1"), 10)
    except adverb.Error:
        return
    raise AssertionError("nothing listens there")

if os.fork() == 0:
    asyncio.run(fails())
    raise SystemExit(0)
assert os.wait()[1] == 0
"""


def whole_program(text: str) -> tuple[int, str]:
    """The exit status of a program, and what it says of errors."""
    words = [sys.executable, "-c", text]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS, check=False)
    return ended.returncode, ended.stderr


def test_the_thread_of_asyncio_ends_before_the_interpreter() -> None:
    for _ in range(20):
        assert whole_program(ENDS_AT_ONCE) == (0, "")


def test_a_child_made_by_fork_has_a_thread_of_its_own() -> None:
    assert whole_program(FORKS) == (0, "")
