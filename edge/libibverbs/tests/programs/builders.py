"""One process, by python3-pyverbs: requests by builders (ibv_wr_*) and completions with all fields; device memory, imported objects,
extended queries; and what a device without vendor features refuses, by the error numbers of such a device. Ends with an
assertion if something is other than it should be."""
import errno
import os
import sys

from pyverbs import enums as e
from pyverbs.addr import AH, AHAttr, GlobalRoute
from pyverbs.cq import CQ, CQEX, CqInitAttrEx, PollCqAttr
from pyverbs.device import DM, AllocDmAttr, Context
from pyverbs.flow import Flow, FlowAttr
from pyverbs.mr import MR, MW, DMMR, MWBindInfo
from pyverbs.pd import PD
from pyverbs.pyverbs_error import PyverbsRDMAError
from pyverbs.qp import QP, DataBuffer, QPAttr, QPCap, QPEx, QPInitAttrEx
from pyverbs.srq import SRQ, SrqInitAttrEx
from pyverbs.wq import WQ, WQInitAttr
from pyverbs.wr import SGE, RecvWR
from pyverbs.xrcd import XRCD, XRCDInitAttr

context = Context(name=sys.argv[1])
gid_index = int(sys.argv[2])
pd = PD(context)
remote = e.IBV_ACCESS_REMOTE_READ | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_ATOMIC
mr = MR(pd, 4096, e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_MW_BIND | remote)
stamps = e.IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | e.IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK
cq = CQEX(context, CqInitAttrEx(cqe=64, wc_flags=e.IBV_WC_STANDARD_FLAGS | stamps))
cap = QPCap(32, 32, 4, 4, 128)
kinds = ["SEND", "SEND_WITH_IMM", "SEND_WITH_INV", "RDMA_WRITE", "RDMA_WRITE_WITH_IMM", "RDMA_READ", "ATOMIC_CMP_AND_SWP",
         "ATOMIC_FETCH_AND_ADD", "LOCAL_INV", "BIND_MW"]
if hasattr(e, "IBV_QP_EX_WITH_ATOMIC_WRITE"):
    kinds.append("ATOMIC_WRITE")
builds = sum(getattr(e, f"IBV_QP_EX_WITH_{kind}") for kind in kinds)


def refused(numbers, what, *words, **more):
    try:
        what(*words, **more)
    except PyverbsRDMAError as error:
        assert error.error_code in numbers, (what, words, more, error)
    else:
        assert False, ("it was not refused", what, words, more)


def ex(kind, operations=0, flags=0):
    mask = e.IBV_QP_INIT_ATTR_PD
    mask |= e.IBV_QP_INIT_ATTR_SEND_OPS_FLAGS if operations else 0
    mask |= e.IBV_QP_INIT_ATTR_CREATE_FLAGS if flags else 0
    return QPInitAttrEx(cap=cap, qp_type=kind, scq=cq, rcq=cq, pd=pd, send_ops_flags=operations, create_flags=flags, comp_mask=mask)


def route():
    return AHAttr(port_num=1, is_global=1, gr=GlobalRoute(dgid=context.query_gid(1, gid_index), sgid_index=gid_index))


def pair():
    both = [QPEx(context, ex(e.IBV_QPT_RC, builds)) for _ in range(2)]
    for qp, other in (both, both[::-1]):
        to = QPAttr(port_num=1)
        to.path_mtu, to.dest_qp_num, to.min_rnr_timer, to.ah_attr = e.IBV_MTU_1024, other.qp_num, 12, route()
        to.max_rd_atomic, to.max_dest_rd_atomic, to.timeout, to.retry_cnt, to.rnr_retry = 4, 4, 14, 7, 7
        to.qp_access_flags = int(remote)
        qp.to_rts(to)
    return both


def take(count):
    """Opcodes, bytes, immediate data and flags of so many completions."""
    found = []
    while len(found) < count:
        if cq.start_poll(PollCqAttr()) == errno.ENOENT:
            continue
        while True:
            assert cq.status == e.IBV_WC_SUCCESS and cq.wr_id == 5, (cq.status, cq.wr_id, cq.read_vendor_err())
            assert cq.read_timestamp() and cq.read_completion_wallclock_ns() and cq.read_qp_num()
            assert cq.read_slid() == cq.read_sl() == cq.read_dlid_path_bits() == cq.read_vendor_err() == 0
            assert cq.read_src_qp() is not None
            found.append((cq.read_opcode(), cq.read_byte_len(), cq.read_wc_flags()))
            if cq.poll_next():
                break
        cq.end_poll()
    return sorted(found)


def does(sender, build, opcode, receiver=None, length=64, flags=0, received=e.IBV_WC_RECV):
    if receiver:
        receiver.post_recv(RecvWR(5, 1, [SGE(mr.buf + 2048, 1024, mr.lkey)]))
    sender.wr_start()
    sender.wr_id, sender.wr_flags = 5, e.IBV_SEND_SIGNALED
    build()
    sender.wr_complete()
    found = take(2 if receiver else 1)
    assert found[0][0] == opcode, (found, opcode)
    assert not receiver or found[1] == (received, length, flags), (found, received, length, flags)


one, two = pair()
first = SGE(mr.buf, 64, mr.lkey)
word = SGE(mr.buf, 8, mr.lkey)
place = mr.buf + 1024
halves = [SGE(mr.buf, 16, mr.lkey), SGE(mr.buf + 64, 16, mr.lkey)]
SEND = e.IBV_WC_SEND
does(one, lambda: (one.wr_send(), one.wr_set_sge(first)), SEND, two)
does(one, lambda: (one.wr_send_imm(7), one.wr_set_sge(first)), SEND, two, flags=e.IBV_WC_WITH_IMM)
does(one, lambda: (one.wr_send(), one.wr_set_sge_list(2, halves)), SEND, two, 32)
does(one, lambda: (one.wr_send(), one.wr_set_inline_data(mr.buf, 64)), SEND, two)
pieces = [DataBuffer(mr.buf, 16), DataBuffer(mr.buf + 64, 16)]
does(one, lambda: (one.wr_send(), one.wr_set_inline_data_list(2, pieces)), SEND, two, 32)
does(one, lambda: (one.wr_rdma_write(mr.rkey, place), one.wr_set_sge(first)), e.IBV_WC_RDMA_WRITE)
with_imm = {"flags": e.IBV_WC_WITH_IMM, "received": e.IBV_WC_RECV_RDMA_WITH_IMM}
does(one, lambda: (one.wr_rdma_write_imm(mr.rkey, place, 9), one.wr_set_sge(first)), e.IBV_WC_RDMA_WRITE, two, **with_imm)
does(one, lambda: (one.wr_rdma_read(mr.rkey, place), one.wr_set_sge(first)), e.IBV_WC_RDMA_READ)
does(one, lambda: (one.wr_atomic_cmp_swp(mr.rkey, place, 1, 2), one.wr_set_sge(word)), e.IBV_WC_COMP_SWAP)
does(one, lambda: (one.wr_atomic_fetch_add(mr.rkey, place, 1), one.wr_set_sge(word)), e.IBV_WC_FETCH_ADD)
if "ATOMIC_WRITE" in kinds and hasattr(one, "wr_atomic_write"):
    does(one, lambda: one.wr_atomic_write(mr.rkey, place, b"12345678"), e.IBV_WC_ATOMIC_WRITE)
    assert mr.read(8, 1024) == b"12345678"


def bound(qp):
    """A window that was bound, and the key that it has since."""
    window = MW(pd, e.IBV_MW_TYPE_2)
    key = window.rkey & ~0xff | (window.rkey + 1) & 0xff
    does(qp, lambda: qp.wr_bind_mw(window, key, MWBindInfo(mr, mr.buf, 64, e.IBV_ACCESS_REMOTE_WRITE)), e.IBV_WC_BIND_MW)
    return window, key


window, key = bound(one)
does(one, lambda: one.wr_local_inv(key), e.IBV_WC_LOCAL_INV)
other, key = bound(two)
does(one, lambda: (one.wr_send_inv(key), one.wr_set_sge(first)), SEND, two, flags=e.IBV_WC_WITH_INV)
one.wr_start()
one.wr_send()
one.wr_abort()

# Memory of the device, by itself and as a region.
dm = DM(context, AllocDmAttr(length=4096))
dm.copy_to_dm(0, b"abcdefgh", 8)
assert dm.copy_from_dm(4, 4) == b"efgh"
region = DMMR(pd, 64, e.IBV_ACCESS_ZERO_BASED | e.IBV_ACCESS_LOCAL_WRITE, dm, 0)
assert region.read(8, 0) == b"abcdefgh"
refused([errno.EINVAL], dm.copy_from_dm, 4092, 8)
refused([errno.EINVAL], DMMR, pd, 64, e.IBV_ACCESS_LOCAL_WRITE, dm, 0)
refused([errno.ENOMEM], DM, context, AllocDmAttr(length=1 << 40))
region.close()

# The same objects by another context of the device.
again = Context(cmd_fd=os.dup(context.cmd_fd))
shared = PD(again, handle=pd.handle)
known = MR(shared, handle=mr.handle)
assert (known.lkey, known.rkey) == (mr.lkey, mr.rkey)
known.unimport()
shared.unimport()

# Questions.
gid = context.query_gid_ex(1, gid_index)
assert gid.gid_type == e.IBV_GID_TYPE_ROCE_V2 and gid.gid_index == gid_index
assert any(entry.gid_index == gid_index for entry in context.query_gid_table(256))
about = context.query_device_ex()
assert about.completion_timestamp_mask and about.hca_core_clock and about.max_dm_size
assert context.query_rt_values_ex()[1] >= 0
for advice in [e._IBV_ADVISE_MR_ADVICE_PREFETCH, e._IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE]:
    pd.advise_mr(advice, e._IBV_ADVISE_MR_FLAG_FLUSH, [first])
xrcd = XRCD(context, XRCDInitAttr(e.IBV_XRCD_INIT_ATTR_FD | e.IBV_XRCD_INIT_ATTR_OFLAGS, os.O_CREAT, -1))


def srq(kind):
    how = SrqInitAttrEx(max_wr=10, max_sge=1)
    how.srq_type, how.cq, how.pd = kind, cq, pd
    how.comp_mask = e.IBV_SRQ_INIT_ATTR_TYPE | e.IBV_SRQ_INIT_ATTR_CQ | e.IBV_SRQ_INIT_ATTR_PD
    if kind == e.IBV_SRQT_XRC:
        how.xrcd, how.comp_mask = xrcd, how.comp_mask | e.IBV_SRQ_INIT_ATTR_XRCD
    return SRQ(context, how)


assert srq(e.IBV_SRQT_XRC).get_srq_num()

# What such a device does not have.
without = [errno.EOPNOTSUPP]
refused(without, srq, e.IBV_SRQT_TM)
refused(without, Flow, one, FlowAttr(num_of_specs=0, port=1))
queue = WQInitAttr(wq_context=None, wq_pd=pd, wq_cq=CQ(context, 4), wq_type=e.IBV_WQT_RQ, max_wr=4, max_sge=1)
refused(without, WQ, context, queue)
refused(without, QP, context, ex(e.IBV_QPT_RAW_PACKET))
refused(without, QP, context, ex(e.IBV_QPT_UD, flags=e.IBV_QP_CREATE_SCATTER_FCS))
refused(without, QPEx, context, ex(e.IBV_QPT_RC, e.IBV_QP_EX_WITH_TSO))
refused(without, QPEx, context, ex(e.IBV_QPT_UD, e.IBV_QP_EX_WITH_RDMA_READ))
refused(without, CQEX, context, CqInitAttrEx(cqe=8, wc_flags=e.IBV_WC_EX_WITH_TM_INFO))
refused(without, one.query_ece)
refused([errno.EINVAL], AH, pd, attr=AHAttr(port_num=1, dlid=1))
refused([errno.EINVAL], context.query_port, 2)
print("all is well")
