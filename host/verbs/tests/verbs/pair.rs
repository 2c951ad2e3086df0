//! Two connected queue pairs in this process, and how to wait without waiting for ever.
//!
//! # Safety
//!
//! Raw requests name memory by key. The only keys that these tests can know are of regions of type
//! `Mr`, which never give out references to their bytes; so no code holds one.

#![allow(dead_code, reason = "each test binary uses a part of it")]

use crate::path::Path;
use adverb_verbs::{
    Access, AckTimeout, Buf, Completion, Context, Cq, Mr, PathMtu, Pd, PostError, Qp, QpConfig, Rc,
    RcConnect, ReceiveWork, RemoteSlice, RetryCount, RnrRetry, SendWork, WcStatus,
};
use std::time::{Duration, Instant};

/// Nothing on one machine takes this long: a longer wait is one for ever.
pub(crate) const FOREVER: Duration = Duration::from_secs(60);

/// One end.
#[derive(Debug)]
pub(crate) struct Side {
    pub(crate) pd: Pd,
    pub(crate) cq: Cq,
    pub(crate) qp: Qp<Rc>,
}

/// Both ends.
#[derive(Debug)]
pub(crate) struct Pair {
    /// The device of `a`, and of `b` unless they are of two.
    pub(crate) context: Context,
    /// The device of `b`.
    pub(crate) far: Context,
    pub(crate) a: Side,
    pub(crate) b: Side,
}

/// How to connect.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    /// The way between them; `None`: as `ADVERB_PATH` has it, on one device.
    pub(crate) path: Option<Path>,
    pub(crate) gid_index: u8,
    pub(crate) traffic_class: u8,
    pub(crate) path_mtu: PathMtu,
    pub(crate) timeout: u8,
    pub(crate) retry_count: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) max_rd_atomic: u8,
    pub(crate) access: Access,
    pub(crate) wr: u32,
    pub(crate) sge: u32,
    pub(crate) inline: u32,
    pub(crate) cqe: u32,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            path: None,
            gid_index: 1,
            traffic_class: 0,
            path_mtu: PathMtu::B4096,
            timeout: 14,
            retry_count: 7,
            rnr_retry: 7,
            max_rd_atomic: 16,
            access: Access::ALL,
            wr: 128,
            sge: 4,
            inline: 64,
            cqe: 512,
        }
    }
}

impl Setup {
    /// A peer that is silent for a third of a second is dead.
    pub(crate) fn impatient() -> Self {
        Self { timeout: 12, retry_count: 5, ..Self::default() }
    }

    /// A peer may be kept from its processor for as long as it likes.
    pub(crate) fn patient() -> Self {
        Self { timeout: 20, ..Self::default() }
    }

    pub(crate) fn side(&self, context: &Context) -> Side {
        let pd = context.alloc_pd();
        let cq = context.create_cq(self.cqe).expect("a completion queue");
        let qp = self.qp(&pd, &cq);
        Side { pd, cq, qp }
    }

    pub(crate) fn qp(&self, pd: &Pd, cq: &Cq) -> Qp<Rc> {
        let config = QpConfig::new(cq)
            .max_send_wr(self.wr)
            .max_recv_wr(self.wr)
            .max_send_sge(self.sge)
            .max_recv_sge(self.sge)
            .max_inline(self.inline);
        pd.create_qp(&config).expect("a queue pair")
    }

    pub(crate) fn attributes(&self, remote: &Qp<Rc>) -> RcConnect {
        let address = |qp: &Qp<Rc>| qp.address_at(self.gid_index).expect("the address is there");
        self.to(RcConnect::new(address(remote)))
    }

    pub(crate) fn to(&self, usual: RcConnect) -> RcConnect {
        usual
            .gid_index(self.gid_index)
            .traffic_class(self.traffic_class)
            .path_mtu(self.path_mtu)
            .timeout(AckTimeout::from_exponent(self.timeout).expect("five bits"))
            .retry_count(RetryCount::new(self.retry_count).expect("three bits"))
            .rnr_retry(RnrRetry::new(self.rnr_retry).expect("three bits"))
            .max_rd_atomic(self.max_rd_atomic)
            .access(self.access)
    }

    /// The devices of both ends.
    fn contexts(&self) -> [Context; 2] {
        match self.path {
            Some(path) => path.contexts(),
            None => {
                let context = Context::open("soft_lo").expect("the loopback device");
                [context.clone(), context]
            }
        }
    }

    pub(crate) fn pair(&self) -> Pair {
        self.connected(self.contexts())
    }

    /// Both ends, in RESET.
    pub(crate) fn pair_unconnected(&self) -> Pair {
        let [context, far] = self.contexts();
        let (a, b) = (self.side(&context), self.side(&far));
        Pair { context, far, a, b }
    }

    pub(crate) fn pair_on(&self, context: Context) -> Pair {
        self.connected([context.clone(), context])
    }

    fn connected(&self, [context, far]: [Context; 2]) -> Pair {
        let (a, b) = (self.side(&context), self.side(&far));
        a.qp.connect(self.attributes(&b.qp)).expect("connected");
        b.qp.connect(self.attributes(&a.qp)).expect("connected");
        if let Some(path) = self.path {
            assert_eq!((a.qp.path(), b.qp.path()), (Some(path.expected()), a.qp.path()));
        }
        Pair { context, far, a, b }
    }
}

impl Pair {
    /// Takes a step on both sides.
    pub(crate) fn drive(&self) {
        self.context.drive();
        self.far.drive();
    }
}

impl Side {
    /// A region with all rights that holds these bytes.
    pub(crate) fn region(&self, bytes: &[u8]) -> Mr {
        let mr = self.pd.allocate(bytes.len(), Access::ALL).expect("memory");
        mr.write(0, bytes).expect("it fits");
        mr
    }

    /// A local buffer that holds these bytes.
    pub(crate) fn buffer(&self, bytes: &[u8]) -> Buf {
        let mut buffer = self.pd.buffer(bytes.len()).expect("memory");
        buffer.copy_from_slice(bytes);
        buffer
    }

    /// Posts raw requests.
    pub(crate) fn post_send(&self, batch: &[SendWork<'_>]) -> Result<(), (usize, PostError)> {
        // SAFETY: the requests name bytes of regions, to which no code holds a reference (header).
        unsafe { self.qp.post_send(batch) }.map_err(|refused| (refused.posted, refused.error))
    }

    /// Posts raw receives.
    pub(crate) fn post_recv(&self, batch: &[ReceiveWork<'_>]) -> Result<(), (usize, PostError)> {
        // SAFETY: the receives name bytes of regions, to which no code holds a reference (header).
        unsafe { self.qp.post_recv(batch) }.map_err(|refused| (refused.posted, refused.error))
    }

    pub(crate) fn wait(&self) -> Completion {
        wait(&self.cq)
    }

    /// Waits for a completion and says how the work ended.
    pub(crate) fn status(&self) -> WcStatus {
        self.wait().wc.status
    }

    /// Nothing has completed, though the device was driven for a while.
    pub(crate) fn is_quiet(&self) -> bool {
        (0..1000).all(|_| self.cq.next().expect("no overrun").is_none())
    }
}

/// The next completion.
pub(crate) fn wait(cq: &Cq) -> Completion {
    let end = Instant::now() + FOREVER;
    loop {
        for _ in 0..1000 {
            if let Some(completion) = cq.next().expect("no overrun") {
                return completion;
            }
        }
        assert!(Instant::now() < end, "nothing has completed");
        std::thread::yield_now();
    }
}

/// Tries until it is true, and fails if that takes too long.
pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + FOREVER;
    while !holds() {
        assert!(Instant::now() < end, "it never came to this: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The memory behind a region, for peers.
pub(crate) fn remote(mr: &Mr) -> RemoteSlice {
    RemoteSlice { addr: mr.addr(), rkey: mr.rkey() }
}

/// Bytes that no shift of themselves equals, and other ones for each seed.
pub(crate) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// What is in a region.
pub(crate) fn bytes_of(mr: &Mr, offset: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    mr.read(offset, &mut bytes).expect("it is in there");
    bytes
}

/// Byte by byte equal; says where the first difference is rather than print megabytes.
pub(crate) fn assert_same(got: &[u8], want: &[u8], what: &str) {
    assert_eq!(got.len(), want.len(), "{what}");
    if got != want {
        let at = got.iter().zip(want).position(|(a, b)| a != b);
        panic!("{what}: byte {at:?} of {} is different", got.len());
    }
}
