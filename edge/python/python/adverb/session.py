"""Servers and clients, channels and buffers by name, messages of any length."""

from adverb._adverb import (
    AsyncChannel,
    AsyncMessenger,
    Block,
    Buffer,
    Channel,
    Client,
    Endpoint,
    Event,
    Messenger,
    RemoteBlock,
    RemoteBuffer,
    Server,
    Ticket,
)

__all__ = [
    "AsyncChannel",
    "AsyncMessenger",
    "Block",
    "Buffer",
    "Channel",
    "Client",
    "Endpoint",
    "Event",
    "Messenger",
    "RemoteBlock",
    "RemoteBuffer",
    "Server",
    "Ticket",
]
