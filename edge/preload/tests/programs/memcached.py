"""Stores values of many lengths in memcached from several threads, and compares what comes back."""

import random
import socket
import sys
import threading

right = [0] * 4


def work(number):
    generator = random.Random(number)
    with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as connection:
        stream = connection.makefile("rwb", buffering=65536)
        for turn in range(300):
            length = generator.choice([0, 1, 100, 4096, 70_000, 1_000_000 if turn % 50 == 0 else 2000])
            value = generator.randbytes(length)
            name = b"key-%d-%d" % (number, turn % 40)
            stream.write(b"set %s 0 0 %d\r\n%s\r\nget %s\r\n" % (name, length, value, name))
            stream.flush()
            assert stream.readline() == b"STORED\r\n"
            assert stream.readline() == b"VALUE %s 0 %d\r\n" % (name, length)
            assert stream.read(length) == value
            assert stream.read(2) == b"\r\n"
            assert stream.readline() == b"END\r\n"
            right[number] += 2
        stream.write(b"quit\r\n")
        stream.flush()
        assert stream.read() == b""


threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print("right:", sum(right))
