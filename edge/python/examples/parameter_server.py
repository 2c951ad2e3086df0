"""A parameter server whose workers READ the parameters: serving them costs the server no step.

The server's parameters are a NumPy array over registered memory. A worker reads them by READ, computes a gradient of
its own data, and sends it; the server applies what arrives. Data of a line y = 3x + 1 without noise lets the
parameters come to (3, 1).
"""

import multiprocessing
import sys

import numpy as np

from adverb.session import Client, Server

STEPS, RATE, TYPE = 400, 0.1, np.dtype(np.float64)
VALUES, INBOX = 2, 2
BYTES = VALUES * TYPE.itemsize


def worker(address: str, seed: int) -> None:
    """Takes STEPS steps with data of its own."""
    random = np.random.default_rng(seed)
    with Client(name=f"worker {seed}").connect(address) as server:
        channel, parameters = server.channel(), server.remote_buffer("parameters").at(0)
        local, gradient = server.buffer(1, BYTES).at(0), server.buffer(1, BYTES).at(0)
        weights, slopes = (np.frombuffer(memoryview(block), TYPE) for block in (local, gradient))
        for _ in range(STEPS):
            channel.read(local, parameters)  # Into `weights`; the server does nothing.
            x = random.uniform(-1, 1, 32)
            error = weights[0] * x + weights[1] - (3 * x + 1)
            slopes[:] = (error * x).mean(), error.mean()
            channel.send(gradient)  # Out of `slopes`, without a copy.


def serve(workers: int) -> np.ndarray:
    """Returns the parameters after all steps of all workers."""
    server = Server("127.0.0.1:0", name="parameters")
    memory = server.buffer(1, BYTES)
    parameters = np.frombuffer(memoryview(memory), TYPE)  # What peers read is what is changed here.
    parameters[:] = 0
    # A process that is forked has no devices of its parent's: workers are programs of their own.
    processes = multiprocessing.get_context("spawn")
    started = [processes.Process(target=worker, args=(server.address, n)) for n in range(workers)]
    for process in started:
        process.start()
    channels = []
    for _ in started:
        endpoint = server.accept(timeout=60)
        channel, inbox = endpoint.channel(), endpoint.buffer(INBOX, BYTES)
        for block in range(INBOX):
            channel.post_recv(inbox.at(block))
        endpoint.advertise("parameters", memory)
        channels.append((endpoint, channel))
    for step in range(STEPS):
        for _, channel in channels:
            arrived = channel.recv(timeout=60)
            parameters -= RATE * np.frombuffer(memoryview(arrived.data), TYPE)
            if step + INBOX < STEPS:  # More will come than there are receives.
                channel.post_recv(arrived.block)
    for process in started:
        process.join(60)
    return np.array(parameters)


if __name__ == "__main__":
    found = serve(int(sys.argv[1]) if len(sys.argv) > 1 else 2)
    print("parameters:", found)
    assert np.allclose(found, (3, 1), atol=0.01), found
