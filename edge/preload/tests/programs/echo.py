"""Echoes, or asks one that echoes, on many connections at once in asyncio."""

import asyncio
import random
import sys

PORT = int(sys.argv[2])


async def answer(reader, writer):
    while block := await reader.read(30_000):
        writer.write(block)
        await writer.drain()
    writer.close()


async def ask(number):
    generator = random.Random(number)
    reader, writer = await asyncio.open_connection("127.0.0.1", PORT)
    writer.write(b"hello")
    assert await reader.readexactly(5) == b"hello"
    blocks = [generator.randbytes(generator.choice([1, 7, 1000, 60_000])) for _ in range(30)]

    async def send():
        for block in blocks:
            writer.write(block)
            await writer.drain()
        writer.write_eof()

    sending = asyncio.create_task(send())
    back = await reader.read(-1)
    await sending
    assert back == b"".join(blocks), f"{len(back)} bytes"
    writer.close()
    await writer.wait_closed()


async def main():
    if sys.argv[1] == "serve":
        server = await asyncio.start_server(answer, "127.0.0.1", PORT)
        await server.serve_forever()
    else:
        await asyncio.gather(*(ask(number) for number in range(20)))
        print("right: 20")


asyncio.run(main())
