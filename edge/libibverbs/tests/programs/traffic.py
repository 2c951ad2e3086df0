"""One process, by python3-pyverbs: queue pairs of every type connected to themselves or to one another, and all that is
done with them. Ends with an assertion if something is other than it should be."""
import sys

from pyverbs import enums as e
from pyverbs.addr import AH, AHAttr, GlobalRoute
from pyverbs.cq import CQ, CompChannel
from pyverbs.device import Context
from pyverbs.mr import MR, MW, MWBind, MWBindInfo
from pyverbs.pd import PD, ParentDomain, ParentDomainInitAttr
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.srq import SRQ, SrqAttr, SrqInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

context = Context(name=sys.argv[1])
gid_index = int(sys.argv[2])
access = 0b1111 | e.IBV_ACCESS_MW_BIND
base = PD(context)
pd = ParentDomain(context, ParentDomainInitAttr(pd=base))
channel = CompChannel(context)
cq = CQ(context, 64, None, channel)
mr = MR(pd, 4096, access)


def way():
    route = GlobalRoute(dgid=context.query_gid(1, gid_index), sgid_index=gid_index)
    return AHAttr(port_num=1, is_global=1, gr=route)


def take(count=1):
    done = []
    while len(done) < count:
        done += cq.poll(count - len(done))[1]
    assert all(wc.status == e.IBV_WC_SUCCESS for wc in done), [wc.status for wc in done]
    return done


def pair(kind, srq=None):
    """A queue pair that is connected to itself."""
    qp = QP(pd, QPInitAttr(qp_type=kind, scq=cq, rcq=cq, srq=srq, cap=QPCap(max_recv_wr=16)))
    attr = QPAttr(port_num=1)
    attr.qp_access_flags = 0b1111
    if kind == e.IBV_QPT_UD:
        attr.qkey = 7
    else:
        attr.dest_qp_num, attr.path_mtu, attr.ah_attr = qp.qp_num, e.IBV_MTU_1024, way()
        attr.max_rd_atomic = attr.max_dest_rd_atomic = 1
        attr.min_rnr_timer, attr.timeout, attr.retry_cnt, attr.rnr_retry = 12, 14, 7, 7
    qp.to_rts(attr)
    return qp


def piece(at, length):
    return SGE(mr.buf + at, length, mr.lkey)


def request(opcode, length=8, at=0):
    return SendWR(opcode=opcode, num_sge=1, sg=[piece(at, length)], send_flags=e.IBV_SEND_SIGNALED)


def sends(qp, queue, header=0, ah=None):
    mr.write("message!", 8)
    queue.post_recv(RecvWR(num_sge=1, sg=[piece(1024, 8 + header)]))
    cq.req_notify()
    wr = request(e.IBV_WR_SEND)
    if ah:
        wr.set_wr_ud(ah, qp.qp_num, 7)
    qp.post_send(wr)
    channel.get_cq_event(cq)
    cq.ack_events(1)
    assert sorted(wc.opcode for wc in take(2)) == [e.IBV_WC_SEND, e.IBV_WC_RECV]
    assert mr.read(8, 1024 + header) == b"message!"


rc, uc, ud = pair(e.IBV_QPT_RC), pair(e.IBV_QPT_UC), pair(e.IBV_QPT_UD)
sends(rc, rc)
sends(uc, uc)
sends(ud, ud, header=40, ah=AH(pd, attr=way()))
srq = SRQ(pd, SrqInitAttr(SrqAttr(max_wr=8)))
sends(pair(e.IBV_QPT_RC, srq), srq)

for qp, text in (uc, "one-way!"), (rc, "one-side"):
    mr.write(text, 8)
    wr = request(e.IBV_WR_RDMA_WRITE)
    wr.set_wr_rdma(mr.rkey, mr.buf + 2048)
    qp.post_send(wr)
    take()
    # A completion of UC says that it was sent, not that it is there.
    while qp == uc and mr.read(8, 2048) != text.encode():
        cq.poll()
    assert mr.read(8, 2048) == text.encode()
wr = request(e.IBV_WR_RDMA_READ, at=3072)
wr.set_wr_rdma(mr.rkey, mr.buf + 2048)
rc.post_send(wr)
take()
assert mr.read(8, 3072) == b"one-side"
mr.write("\0" * 8, 8)
for opcode, compare_add, swap, after in (e.IBV_WR_ATOMIC_FETCH_AND_ADD, 5, 0, 5), (e.IBV_WR_ATOMIC_CMP_AND_SWP, 5, 9, 9):
    wr = request(opcode, at=64)
    wr.set_wr_atomic(mr.rkey, mr.buf, compare_add, swap)
    rc.post_send(wr)
    take()
    assert int.from_bytes(mr.read(8, 0), "little") == after

window = MW(pd, e.IBV_MW_TYPE_1)
rc.bind_mw(window, MWBind(MWBindInfo(mr, mr.buf, 4096, e.IBV_ACCESS_REMOTE_WRITE), e.IBV_SEND_SIGNALED))
assert take()[0].opcode == e.IBV_WC_BIND_MW
mr.write("windowed", 8)
wr = request(e.IBV_WR_RDMA_WRITE)
wr.set_wr_rdma(window.rkey, mr.buf + 2048)
rc.post_send(wr)
take()
assert mr.read(8, 2048) == b"windowed"
print("all well")
context.close()
