"""Two processes that meet by the connection manager, by python3-pyverbs: connections that are made in one call and by events,
refused ones, a queue pair of the program's own, datagrams, a multicast group; and what goes from one to the other and back.
Usage: meets.py -p PORT [SERVER]. Ends with an assertion if something is other than it should be."""
import socket
import sys

import pyverbs.cm_enums as ce
from pyverbs import enums as e
from pyverbs.addr import AH
from pyverbs.cmid import CMID, AddrInfo, CMEvent, CMEventChannel, ConnParam, JoinMCAttrEx, UDParam
from pyverbs.cq import CQ
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

port = int(sys.argv[2])
client = len(sys.argv) > 3
if client:
    peer = socket.create_connection((sys.argv[3], port))
else:
    with socket.create_server(("", port)) as listener:
        peer = listener.accept()[0]
mine, server = peer.getsockname()[0], sys.argv[3] if client else peer.getsockname()[0]
heard, told = peer.makefile("r"), peer.makefile("w")
HEADER, LENGTH = 40, 64
GROUP, GROUP_QPN = "239.1.2.77", 0xFFFFFF


def swap(*words):
    """Tells the peer something, and learns the same of it: both have come so far."""
    print(*words, file=told, flush=True)
    return heard.readline().split()


def info(space, at):
    """Where the server is: to listen there, or to reach it. Each try has a port of its own."""
    if client:
        return AddrInfo(src=mine, dst=server, dst_service=str(at), port_space=space)
    return AddrInfo(src=server, src_service=str(at), port_space=space, flags=ce.RAI_PASSIVE)


def init(kind, **queues):
    return QPInitAttr(qp_type=kind, cap=QPCap(max_recv_wr=4), **queues)


def next_event(cmid, expected):
    """Takes an event, of which all that is needed is taken before it is acknowledged."""
    event = CMEvent(cmid.event_channel)
    assert event.event_type == expected, (event.event_str(), expected)
    child = UDParam(event) if event.event_type in (ce.RDMA_CM_EVENT_ESTABLISHED, ce.RDMA_CM_EVENT_MULTICAST_JOIN) else None
    if event.event_type == ce.RDMA_CM_EVENT_CONNECT_REQUEST:
        child = CMID(creator=event, listen_id=cmid)
    data = event.private_data
    event.ack_cm_event()
    return child, data


def exchange(cmid):
    """A message each way over a connection, the client's first; its receives are posted."""
    mr = cmid.reg_msgs(LENGTH)
    cmid.post_recv(mr)
    swap("ready")
    for turn in client, not client:
        if turn:
            cmid.post_send(filled)
            assert cmid.get_send_comp().status == e.IBV_WC_SUCCESS
        else:
            wc = cmid.get_recv_comp()
            assert wc.status == e.IBV_WC_SUCCESS and wc.byte_len == LENGTH
            assert mr.read(LENGTH, 0) == (b"s" if client else b"c") * LENGTH
        swap("done")
    mr.close()


def in_one_call():
    """Calls that wait for events by themselves; WRITE and READ."""
    global filled
    attr = init(e.IBV_QPT_RC)
    cmid = CMID(creator=info(ce.RDMA_PS_TCP, port + 1), qp_init_attr=attr)
    if client:
        swap("listens")
        cmid.connect()
    else:
        cmid.listen()
        swap("listens")
        listener, cmid = cmid, cmid.get_request()
        cmid.accept()
    filled = cmid.reg_msgs(LENGTH)
    filled.write(("c" if client else "s") * LENGTH, LENGTH)
    exchange(cmid)
    for register, post in (cmid.reg_write, cmid.post_write), (cmid.reg_read, cmid.post_read):
        remote = register(LENGTH)
        remote.write("r" * LENGTH, LENGTH)
        address, key = map(int, swap(remote.buf, remote.rkey))
        if client:
            post(filled, LENGTH, address, key, flags=e.IBV_SEND_SIGNALED)
            assert cmid.get_send_comp().status == e.IBV_WC_SUCCESS
        swap("done")
        if not client and post == cmid.post_write:
            assert remote.read(LENGTH, 0) == b"c" * LENGTH
        if client and post == cmid.post_read:
            assert filled.read(LENGTH, 0) == b"r" * LENGTH
        remote.close()
    filled.close()
    cmid.disconnect()
    cmid.close()
    if not client:
        listener.close()


def listening(space, at):
    cmid = CMID(creator=CMEventChannel(), port_space=space)
    cmid.bind_addr(info(space, at))
    cmid.listen()
    swap("listens")
    return cmid


def resolved(space, at):
    cmid = CMID(creator=CMEventChannel(), port_space=space)
    swap("listens")
    cmid.resolve_addr(info(space, at))
    next_event(cmid, ce.RDMA_CM_EVENT_ADDR_RESOLVED)
    cmid.resolve_route()
    next_event(cmid, ce.RDMA_CM_EVENT_ROUTE_RESOLVED)
    return cmid


def by_events():
    """The first is refused, with a reason; the second is accepted. Either side sees the end."""
    global filled
    at = port + 2
    if client:
        for is_refused in True, False:
            cmid = resolved(ce.RDMA_PS_TCP, at)
            cmid.create_qp(init(e.IBV_QPT_RC))
            cmid.connect(ConnParam())
            if is_refused:
                _, why = next_event(cmid, ce.RDMA_CM_EVENT_REJECTED)
                assert why[:8] == b"not now!", why
                cmid.close()
        next_event(cmid, ce.RDMA_CM_EVENT_ESTABLISHED)
    else:
        listener = listening(ce.RDMA_PS_TCP, at)
        refused, _ = next_event(listener, ce.RDMA_CM_EVENT_CONNECT_REQUEST)
        refused.reject(b"not now!")
        refused.close()
        swap("listens")
        cmid, _ = next_event(listener, ce.RDMA_CM_EVENT_CONNECT_REQUEST)
        cmid.create_qp(init(e.IBV_QPT_RC))
        cmid.set_option(ce.RDMA_OPTION_ID, ce.RDMA_OPTION_ID_ACK_TIMEOUT, 19, 1)
        cmid.accept(ConnParam())
        assert cmid.query_qp(e.IBV_QP_TIMEOUT)[0].timeout == 19
        next_event(listener, ce.RDMA_CM_EVENT_ESTABLISHED)
    filled = cmid.reg_msgs(LENGTH)
    filled.write(("c" if client else "s") * LENGTH, LENGTH)
    exchange(cmid)
    if not client:
        cmid.disconnect()
    next_event(cmid if client else listener, ce.RDMA_CM_EVENT_DISCONNECTED)
    if client:
        cmid.disconnect()
    swap("disconnected")
    filled.close()
    cmid.close()
    if not client:
        listener.close()


def own_queue_pair():
    """The program makes the queue pair, and takes it through its states by what the connection manager says."""
    at = port + 3
    if client:
        cmid = resolved(ce.RDMA_PS_TCP, at)
    else:
        listener = listening(ce.RDMA_PS_TCP, at)
        cmid, _ = next_event(listener, ce.RDMA_CM_EVENT_CONNECT_REQUEST)
    cq = CQ(cmid.context, 16, None, None, 0)
    qp = QP(cmid.pd, init(e.IBV_QPT_RC, scq=cq, rcq=cq), QPAttr())
    param = ConnParam(qp_num=qp.qp_num)
    if client:
        cmid.connect(param)
        next_event(cmid, ce.RDMA_CM_EVENT_CONNECT_RESPONSE)
    for state in e.IBV_QPS_INIT, e.IBV_QPS_RTR, e.IBV_QPS_RTS:
        qp.modify(*cmid.init_qp_attr(state))
    mr = cmid.reg_msgs(2 * LENGTH)
    here, there = [SGE(mr.buf + at, LENGTH, mr.lkey) for at in (0, LENGTH)]
    qp.post_recv(RecvWR(num_sge=1, sg=[there]))
    if client:
        cmid.establish()
    else:
        cmid.accept(param)
        next_event(listener, ce.RDMA_CM_EVENT_ESTABLISHED)
    mr.write(("c" if client else "s") * LENGTH, LENGTH)
    swap("ready")
    qp.post_send(SendWR(opcode=e.IBV_WR_SEND, num_sge=1, sg=[here], send_flags=e.IBV_SEND_SIGNALED))
    done = []
    while len(done) < 2:
        done += cq.poll(2)[1]
    assert all(wc.status == e.IBV_WC_SUCCESS for wc in done)
    assert mr.read(LENGTH, LENGTH) == (b"s" if client else b"c") * LENGTH
    swap("done")
    mr.close()
    qp.close()
    cq.close()
    cmid.close()
    if not client:
        listener.close()


def datagrams():
    """The client learns the server's queue pair and its way there; the server answers to where a message came from."""
    at = port + 4
    if client:
        cmid = resolved(ce.RDMA_PS_UDP, at)
        cmid.create_qp(init(e.IBV_QPT_UD))
        cmid.connect(ConnParam())
        found, _ = next_event(cmid, ce.RDMA_CM_EVENT_ESTABLISHED)
    else:
        listener = listening(ce.RDMA_PS_UDP, at)
        cmid, _ = next_event(listener, ce.RDMA_CM_EVENT_CONNECT_REQUEST)
        cmid.create_qp(init(e.IBV_QPT_UD))
        cmid.accept(ConnParam())
    mr = cmid.reg_msgs(HEADER + LENGTH)
    number = int(swap(cmid.qpn)[0])
    cmid.post_recv(mr) if not client else mr.write("c" * LENGTH, LENGTH)
    swap("ready")
    if client:
        assert found.qp_num == number
        cmid.post_ud_send(mr, AH(cmid.pd, attr=found.ah_attr), rqpn=number, length=LENGTH)
        cmid.get_send_comp()
        cmid.post_recv(mr)
    else:
        wc = cmid.get_recv_comp()
        assert mr.read(LENGTH, HEADER) == b"c" * LENGTH
        way = AH(cmid.pd, wc=wc, port_num=1, grh=mr.buf)
        mr.write("s" * LENGTH, LENGTH)
    swap("ready")
    if client:
        assert cmid.get_recv_comp().byte_len == HEADER + LENGTH
        assert mr.read(LENGTH, HEADER) == b"s" * LENGTH
    else:
        cmid.post_ud_send(mr, way, rqpn=number, length=LENGTH)
        cmid.get_send_comp()
    swap("done")
    mr.close()
    cmid.close()
    if not client:
        listener.close()


def group():
    """Both join, by either call; the client sends, and the server has a copy."""
    cmid = CMID(creator=CMEventChannel(), port_space=ce.RDMA_PS_UDP)
    cmid.bind_addr(AddrInfo(src=mine, src_service=str(port + 5 + client), port_space=ce.RDMA_PS_UDP, flags=ce.RAI_PASSIVE))
    cmid.resolve_addr(AddrInfo(src=mine, dst=GROUP))
    next_event(cmid, ce.RDMA_CM_EVENT_ADDR_RESOLVED)
    cmid.create_qp(init(e.IBV_QPT_UD))
    address = AddrInfo(src=GROUP)  # An attribute for the other call points to it.
    if client:
        cmid.join_multicast(addr=address)
    else:
        mask = ce.RDMA_CM_JOIN_MC_ATTR_ADDRESS | ce.RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS
        flags = ce.RDMA_MC_JOIN_FLAG_FULLMEMBER
        cmid.join_multicast(mc_attr=JoinMCAttrEx(addr=address, comp_mask=mask, join_flags=flags))
    found, _ = next_event(cmid, ce.RDMA_CM_EVENT_MULTICAST_JOIN)
    mr = cmid.reg_msgs(HEADER + LENGTH)
    cmid.post_recv(mr) if not client else mr.write("c" * LENGTH, LENGTH)
    swap("joined")
    if client:
        cmid.post_ud_send(mr, AH(cmid.pd, attr=found.ah_attr), rqpn=GROUP_QPN, length=LENGTH)
        cmid.get_send_comp()
    else:
        cmid.get_recv_comp()
        assert mr.read(LENGTH, HEADER) == b"c" * LENGTH
    swap("done")
    cmid.leave_multicast(address)
    mr.close()
    cmid.close()


for step in in_one_call, by_events, own_queue_pair, datagrams, group:
    step()
print("all well")
