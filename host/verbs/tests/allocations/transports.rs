//! The data path of transports other than RC, over and over.

use crate::pair::{Setup, wait};
use adverb_verbs::{
    Access, Ah, AhAttr, Context, Cq, GRH_LEN, Mr, Qkey, Qp, QpConfig, Qpn, RcConnect, Srq,
    SrqConfig, Uc, Ud, Work, XrcInitiator, XrcTarget,
};

const LEN: usize = 64;
const QKEY: Qkey = Qkey(0x1234);

/// One pair of each transport, and memory for them.
pub(crate) struct Transports {
    cq: Cq,
    memory: Mr,
    uc: [Qp<Uc>; 2],
    ud: [Qp<Ud>; 2],
    ah: Ah,
    group: Ah,
    initiator: Qp<XrcInitiator>,
    _target: Qp<XrcTarget>,
    queues: [Srq; 2],
}

impl Transports {
    pub(crate) fn new(setup: &Setup) -> Self {
        let context = Context::open("soft_lo").expect("the loopback device");
        let (pd, cq) = (context.alloc_pd(), context.create_cq(256).expect("a queue"));
        let config = QpConfig::new(&cq);
        let uc = [(); 2].map(|()| pd.create_qp_of::<Uc>(&config).expect("a queue pair"));
        let [here, there] = [&uc[0], &uc[1]].map(|qp| qp.address().expect("an address"));
        uc[0].connect(there).expect("connected");
        uc[1].connect(here).expect("connected");
        let ud = [(); 2].map(|()| pd.create_qp_of::<Ud>(&config).expect("a queue pair"));
        ud.iter().for_each(|qp| qp.activate(QKEY).expect("ready"));
        let group = adverb_verbs::Gid::from_v4([239, 7, 7, 77]);
        ud[1].attach_mcast(group).expect("attached");
        let way = |gid| pd.create_ah(&AhAttr::new(gid)).expect("a way");
        let xrcd = context.open_xrcd();
        let target = xrcd.create_target(0).expect("a target");
        let initiator = pd.create_qp_of::<XrcInitiator>(&config).expect("an initiator");
        let [x, y] = [initiator.address(), target.address()].map(|end| end.expect("an address"));
        initiator.connect(setup.to(RcConnect::new(y))).expect("connected");
        target.connect(setup.to(RcConnect::new(x))).expect("connected");
        let srq = || pd.create_xrc_srq(&SrqConfig::new(8), &xrcd, &cq).expect("a queue");
        Self {
            memory: pd.allocate(LEN + GRH_LEN, Access::ALL).expect("memory"),
            ah: way(here.gid),
            group: way(group),
            queues: [srq(), srq()],
            _target: target,
            initiator,
            cq,
            uc,
            ud,
        }
    }

    /// A message over each of them.
    pub(crate) fn round(&self) {
        let message = || self.memory.slice(0, LEN).expect("in there");
        let room = || self.memory.slice(0, LEN + GRH_LEN).expect("in there");
        let both = || {
            for _ in 0..2 {
                wait(&self.cq).ok().expect("success");
            }
        };
        self.uc[1].post(Work::recv(room())).expect("room");
        self.uc[0].post(Work::send(message())).expect("room");
        both();
        for (ah, to) in [(&self.ah, self.ud[1].number()), (&self.group, Qpn::MULTICAST)] {
            self.ud[1].post(Work::recv(room())).expect("room");
            self.ud[0].post(Work::send_to(message(), ah, to, QKEY)).expect("room");
            both();
        }
        for srq in &self.queues {
            srq.post(Work::recv(room())).expect("room");
            self.initiator.post(Work::send(message()).to_srq(srq.number())).expect("room");
            both();
        }
    }
}
