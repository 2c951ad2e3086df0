"""Verbs in outline: what `adverb.verbs` has."""

import numpy as np
import pytest
from conftest import SECONDS

import adverb
from adverb.verbs import Access, Context, Cq, Mr, Qp, devices


def pair() -> tuple[Qp, Qp, Cq, Mr, Mr]:
    context = Context("soft_lo")
    pd, cq = context.alloc_pd(), context.create_cq(16)
    one, two = pd.create_qp(cq), pd.create_qp(cq, max_send_wr=4, max_recv_wr=4)
    one.connect(two.address)
    two.connect(one.address)
    return one, two, cq, pd.allocate(64, Access.ALL), pd.allocate(64, Access.ALL)


def finished(cq: Cq) -> adverb.verbs.Completion:
    completion = cq.wait(timeout=SECONDS)
    assert completion is not None and completion.ok, completion
    return completion


def test_a_device_is_found_by_its_name() -> None:
    assert "soft_lo" in devices()
    assert "127.0.0.1" in Context("soft_lo").addresses
    with pytest.raises(adverb.Error, match="soft_lo"):
        Context("no_such_device")


def test_messages_writes_reads_and_atomics_are_done() -> None:
    one, two, cq, near, far = pair()
    near.write(b"hello")
    two.post_recv(far, 8, 16, wr_id=1)
    one.post_send(near, 0, 5, imm=4, wr_id=2)
    done = {completion.wr_id: completion for completion in (finished(cq), finished(cq))}
    assert (done[1].byte_len, done[1].imm, bytes(far)[8:13]) == (5, 4, b"hello")
    one.post_write(near, far.remote(32), 0, 5)
    finished(cq)
    assert bytes(memoryview(far)[32:37]) == b"hello"
    words = np.frombuffer(memoryview(far), np.uint64)
    words[7] = 40
    one.post_fetch_add(near, far.remote(56), 2, 8)
    finished(cq)
    one.post_compare_swap(near, far.remote(56), 42, 1, 16)
    finished(cq)
    assert list(np.frombuffer(memoryview(near), np.uint64)[1:3]) == [40, 42] and words[7] == 1
    one.post_read(near, far.remote(8), 40, 5)
    finished(cq)
    assert bytes(near)[40:45] == b"hello"


def test_an_empty_queue_is_waited_for_in_vain() -> None:
    *_, cq, _, _ = pair()
    assert cq.poll() is None and cq.wait(timeout=0.01) is None


def test_mistakes_are_refused() -> None:
    one, _, cq, near, far = pair()
    with pytest.raises(adverb.Error):
        one.post_send(near, 60, 5)
    with pytest.raises(adverb.Error, match="expected|is not|rkey|address"):
        one.post_write(near, "nonsense")
    one.post_write(near, far.remote(64), 0, 1)
    completion = cq.wait(timeout=SECONDS)
    assert completion is not None and not completion.ok and "access" in completion.status
