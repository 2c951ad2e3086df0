"""Two ends of a session in one process, and a bound on every wait."""

import faulthandler
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from adverb.session import Client, Endpoint, Server

SECONDS = 20.0


@pytest.fixture(autouse=True)
def bounded() -> Iterator[None]:
    """A test that hangs ends the run, with where it hung."""
    faulthandler.dump_traceback_later(4 * SECONDS, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


def meet(**settings: object) -> tuple[Endpoint, Endpoint]:
    """A client's endpoint, and the server's."""
    server = Server("127.0.0.1:0", work_timeout=SECONDS, **settings)
    with ThreadPoolExecutor(1) as pool:
        accepting = pool.submit(server.accept, timeout=SECONDS)
        client = Client(work_timeout=SECONDS, **settings).connect(server.address)
        return client, accepting.result(SECONDS)


@pytest.fixture
def ends() -> tuple[Endpoint, Endpoint]:
    return meet()
