"""Two processes, by python3-pyverbs: server and client with a queue pair of each type between them, and what goes from one to
the other and back. Usage: apart.py DEVICE GID_INDEX -p PORT [SERVER]. Ends with an assertion if something is other than it
should be."""
import socket
import sys

from pyverbs import enums as e
from pyverbs.addr import AH, AHAttr, GID, GlobalRoute
from pyverbs.cq import CQ, CompChannel
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

context = Context(name=sys.argv[1])
gid_index = int(sys.argv[2])
port = int(sys.argv[4])
client = len(sys.argv) > 5
if client:
    peer = socket.create_connection((sys.argv[5], port))
else:
    with socket.create_server(("", port)) as listener:
        peer = listener.accept()[0]
heard, told = peer.makefile("r"), peer.makefile("w")


def swap(*words):
    """Tells the peer something, and learns the same of it: both have come so far."""
    print(*words, file=told, flush=True)
    return heard.readline().split()


pd = PD(context)
channel = CompChannel(context)
cq = CQ(context, 64, None, channel)
mr = MR(pd, 4096, 0b1111)
mine = context.query_gid(1, gid_index)
gid, address, key = swap(mine, mr.buf, mr.rkey)
address, key = int(address), int(key)
way = AHAttr(port_num=1, is_global=1, gr=GlobalRoute(dgid=GID(gid), sgid_index=gid_index))
KINDS = {"rc": e.IBV_QPT_RC, "uc": e.IBV_QPT_UC, "ud": e.IBV_QPT_UD}
qps, numbers = {}, {}
for name, kind in KINDS.items():
    qp = qps[name] = QP(pd, QPInitAttr(qp_type=kind, scq=cq, rcq=cq, cap=QPCap(max_recv_wr=16)))
    numbers[name] = int(swap(qp.qp_num)[0])
    attr = QPAttr(port_num=1)
    attr.qp_access_flags = 0b1111
    if name == "ud":
        attr.qkey = 7
    else:
        attr.dest_qp_num, attr.path_mtu, attr.ah_attr = numbers[name], e.IBV_MTU_1024, way
        attr.max_rd_atomic = attr.max_dest_rd_atomic = 1
        attr.min_rnr_timer, attr.timeout, attr.retry_cnt, attr.rnr_retry = 12, 17, 7, 7
    qp.to_rts(attr)


def piece(at, length):
    return SGE(mr.buf + at, length, mr.lkey)


def request(opcode, length=8, at=0):
    return SendWR(opcode=opcode, num_sge=1, sg=[piece(at, length)], send_flags=e.IBV_SEND_SIGNALED)


def take(opcode):
    """The next completion, for which the channel is waited on."""
    cq.req_notify()
    count, done = cq.poll(1)
    if count == 0:
        channel.get_cq_event(cq)
        cq.ack_events(1)
        while count == 0:
            count, done = cq.poll(1)
    assert done[0].status == e.IBV_WC_SUCCESS, done[0].status
    assert done[0].opcode == opcode, done[0].opcode


def send(name):
    wr = request(e.IBV_WR_SEND)
    if name == "ud":
        wr.set_wr_ud(AH(pd, attr=way), numbers[name], 7)
    qps[name].post_send(wr)
    take(e.IBV_WC_SEND)


for name, qp in qps.items():
    header = 40 if name == "ud" else 0
    qp.post_recv(RecvWR(num_sge=1, sg=[piece(1024, 64)]))
    swap("ready")
    for turn in client, not client:
        if turn:
            mr.write("message!", 8)
            send(name)
        else:
            take(e.IBV_WC_RECV)
            assert mr.read(8, 1024 + header) == b"message!"
        swap("done")

if client:
    rc = qps["rc"]
    mr.write("one-side", 8)
    for opcode, at in (e.IBV_WR_RDMA_WRITE, 0), (e.IBV_WR_RDMA_READ, 3072):
        wr = request(opcode, at=at)
        wr.set_wr_rdma(key, address + 2048)
        rc.post_send(wr)
        take(e.IBV_WC_RDMA_WRITE if at == 0 else e.IBV_WC_RDMA_READ)
    assert mr.read(8, 3072) == b"one-side"
    wr = request(e.IBV_WR_ATOMIC_FETCH_AND_ADD, at=64)
    wr.set_wr_atomic(key, address + 2040, 5)
    rc.post_send(wr)
    take(e.IBV_WC_FETCH_ADD)
swap("done")
if not client:
    assert mr.read(8, 2048) == b"one-side"
    assert int.from_bytes(mr.read(8, 2040), "little") == 5
print("all well")
context.close()
