"""Verbs in outline: devices, memory regions, completion queues, and queue pairs of type RC."""

from enum import IntFlag

from adverb._adverb import Completion, Context, Cq, Mr, Pd, Qp, devices


class Access(IntFlag):
    """What may be done to a region. The numbers are those of `enum ibv_access_flags`."""

    NONE = 0
    LOCAL_WRITE = 1
    REMOTE_WRITE = 2
    REMOTE_READ = 4
    REMOTE_ATOMIC = 8
    ALL = 15


__all__ = ["Access", "Completion", "Context", "Cq", "Mr", "Pd", "Qp", "devices"]
