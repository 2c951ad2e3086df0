"""Exceptions. Their text is that of the Rust libraries."""


class Error(Exception):
    """What the library refused, or what failed."""

    __module__ = "adverb"


class PeerGone(Error, ConnectionError):
    """The peer has closed, was killed, or is silent."""

    __module__ = "adverb"


class Timeout(Error, TimeoutError):
    """It took too long. Work that was posted goes on."""

    __module__ = "adverb"
