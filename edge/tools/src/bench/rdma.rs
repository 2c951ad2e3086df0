//! The real queue pair behind the measurements.
//!
//! # Safety
//!
//! Requests are posted raw, as a C program would. That is sound because the only memory they name
//! is an `Mr`, which never gives out references to its bytes, and which lives in the same value as
//! the queue pair and is dropped after it.

use adverb::session::Route;
use adverb::verbs::{
    Access, AckTimeout, Context, Cq, Gid, Mr, PathMtu, Provider, Psn, Qp, QpConfig, Qpn, Rc,
    RcConnect, ReceiveWork, RemoteQp, RemoteSlice, Rkey, SendData, SendKind, SendTo, SendWork, Sge,
    WcOpcode, WcStatus, WorkCompletion, WorkError, devices,
};
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, SocketAddr};

use super::control::{Answer, Control, Order, refusal, unexpected};
use super::measure::{Endpoint, Link, Reaped, Request};
use super::meeting::{Listener, Tie};
use super::plan::{Memory, Tuning};
use super::report::Path;
use crate::args::{Meeting, Op};
use crate::devices::device_names;
use crate::failure::{Doing, Failure};

/// How a queue pair can be reached, and its memory.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Contact {
    /// Its number.
    pub(crate) qpn: u32,
    /// Sequence number of its first packet.
    pub(crate) psn: u32,
    /// Address of its port.
    pub(crate) gid: [u8; 16],
    /// Path MTU in bytes, at most.
    pub(crate) mtu: u32,
    /// Address of its memory.
    pub(crate) addr: u64,
    /// Key of its memory.
    pub(crate) rkey: u32,
    /// READs under way at once that its device allows.
    #[serde(default = "usual_reads")]
    pub(crate) reads: u8,
    /// Where it waits to be connected by connection management.
    #[serde(default)]
    pub(crate) listens: Option<SocketAddr>,
}

/// READs under way at once of a device of which nothing is known.
const fn usual_reads() -> u8 {
    16
}

impl Contact {
    fn remote(&self) -> RemoteQp {
        RemoteQp { gid: Gid(self.gid), qpn: Qpn::new(self.qpn), psn: Psn::new(self.psn) }
    }
}

/// Which device to use, and how; each side's own choice.
#[derive(Clone, Debug, Default)]
pub(crate) struct DeviceChoice {
    /// Its name; `None`: by the address of the control connection.
    pub(crate) device: Option<String>,
    /// Index into its GID table; `None`: by the address of the control connection.
    pub(crate) gid_index: Option<u8>,
}

impl DeviceChoice {
    /// Whether there is such a device, asked before it is needed.
    ///
    /// # Errors
    ///
    /// If it has a name that no device has; the error names those that there are.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        let Some(name) = &self.device else {
            return Ok(());
        };
        let all = devices().doing("listing the RDMA devices")?;
        let Some(device) = all.iter().find(|device| device.name == *name) else {
            return Err(self.not_among(&all));
        };
        match self.gid_index {
            Some(index) if !device.gids.iter().any(|entry| entry.index == index) => {
                let known: Vec<_> = device.gids.iter().map(|e| e.index.to_string()).collect();
                Err(Failure::Failed(format!(
                    "device {name} has no GID at index {index}; there are: {}",
                    known.join(", ")
                )))
            }
            Some(_) | None => Ok(()),
        }
    }

    /// The device is not ours: there is one way to a neighbour, its own.
    pub(crate) fn is_hardware(&self) -> bool {
        let all = devices().unwrap_or_default();
        let chosen = all.iter().find(|device| Some(&device.name) == self.device.as_ref());
        chosen.is_some_and(|device| device.provider != Provider::Soft)
    }

    /// There is no such device.
    fn not_among(&self, all: &[adverb::verbs::Device]) -> Failure {
        let wanted = self.device.as_deref().unwrap_or("with the address of this connection");
        Failure::Failed(format!(
            "there is no device {wanted}; there are: {}. Choose one with --device",
            device_names(all)
        ))
    }

    /// The device and the index of the address to use.
    fn find(&self, control: &Control) -> Result<(String, u8), Failure> {
        let here = control.local(0)?.ip().to_canonical();
        let all = devices().doing("listing the RDMA devices")?;
        let mut found = None;
        for device in &all {
            if self.device.as_ref().is_some_and(|name| *name != device.name) {
                continue;
            }
            let same = device.gids.iter().find(|entry| entry.ip() == here);
            let index = match (self.gid_index, same) {
                (Some(index), _) if self.device.is_some() || same.is_some() => index,
                (_, Some(entry)) => entry.index,
                (_, None) if self.device.is_some() => first_like(here, device),
                (_, None) => continue,
            };
            found = Some((device.name.clone(), index));
            break;
        }
        found.ok_or_else(|| self.not_among(&all))
    }
}

/// The first address of the same kind as `here`.
fn first_like(here: IpAddr, device: &adverb::verbs::Device) -> u8 {
    let same = device.gids.iter().find(|entry| entry.ip().is_ipv4() == here.is_ipv4());
    same.map_or(1, |entry| entry.index)
}

/// A connected queue pair and its memory.
#[derive(Debug)]
pub(crate) struct QueuePair {
    qp: Qp<Rc>,
    /// Of one that was connected by connection management.
    tie: Option<Tie>,
    cq: Cq,
    memory: Mr,
    remote: RemoteSlice,
    /// The address of the other end's port.
    far: Gid,
    inline: Inline,
    gid_index: u8,
    /// Traffic class and hop limit of its packets.
    marks: (u8, u8),
    mtu: PathMtu,
    context: Context,
    /// Room for what a poll takes.
    completions: [WorkCompletion; POLL_MAX],
}

/// Where bytes wait that are about to be copied into requests: a place for each request of a batch.
#[derive(Debug)]
struct Inline {
    bytes_max: usize,
    places: Vec<u8>,
}

impl Inline {
    fn new(bytes_max: usize) -> Self {
        Self { bytes_max, places: vec![0; bytes_max * BATCH_MAX] }
    }

    /// Whether a request carries its bytes itself. A READ has none to carry.
    #[inline]
    fn takes(&self, request: &Request) -> bool {
        request.bytes <= self.bytes_max && request.op != Op::Read
    }

    /// The place of request `at` of a batch.
    #[inline]
    fn place(&self, at: usize, bytes: usize) -> &[u8] {
        self.places.get(at * self.bytes_max..).and_then(|rest| rest.get(..bytes)).unwrap_or(&[])
    }

    #[inline]
    fn place_mut(&mut self, at: usize, bytes: usize) -> &mut [u8] {
        let rest = self.places.get_mut(at * self.bytes_max..);
        rest.and_then(|rest| rest.get_mut(..bytes)).unwrap_or(&mut [])
    }
}

/// The client's end.
pub(crate) fn connect(
    control: &mut Control,
    choice: &DeviceChoice,
    tuning: &Tuning,
) -> Result<Link<QueuePair>, Failure> {
    let mut pair = QueuePair::open(control, choice, tuning)?;
    let listener = match tuning.connector {
        Meeting::Cm => Some(Listener::bind(pair.ip()?)?),
        Meeting::Tcp => None,
    };
    let listens = listener.as_ref().map(Listener::local);
    let contact = Contact { listens, ..pair.contact()? };
    control.send(&Order::Open { tuning: tuning.clone(), contact })?;
    if let Some(listener) = listener {
        pair.tie = Some(listener.accept(&pair.qp, || {
            let answer = control.try_receive::<Answer>()?;
            answer.map_or(Ok(()), |answer| Err(refusal(&answer)))
        })?);
    }
    let answer = control.answer()?;
    let Answer::Opened { contact } = answer else {
        return Err(unexpected(&answer));
    };
    pair.connect(&contact)?;
    let mut link = Link::new(pair, tuning.layout)?;
    if link.endpoint().path() == Path::Shm {
        link.get_acquainted()?;
    }
    Ok(link)
}

/// The server's end: answers an `Open` order.
pub(crate) fn accept(
    control: &mut Control,
    choice: &DeviceChoice,
    tuning: &Tuning,
    contact: &Contact,
) -> Result<Link<QueuePair>, Failure> {
    let mut pair = QueuePair::open(control, choice, tuning)?;
    pair.connect(contact)?;
    let own = pair.contact()?;
    let link = Link::new(pair, tuning.layout)?;
    control.send(&Answer::Opened { contact: own })?;
    Ok(link)
}

impl QueuePair {
    fn open(control: &Control, choice: &DeviceChoice, tuning: &Tuning) -> Result<Self, Failure> {
        let (name, gid_index) = choice.find(control)?;
        let context = Context::open(&name).doing("opening the device")?;
        let pd = context.alloc_pd();
        let receives = tuning.layout.receives;
        let depth = tuning.tx_depth.saturating_add(receives).saturating_add(1);
        let cq = context.create_cq(depth).doing("creating a completion queue")?;
        let qp = pd
            .create_qp(
                &QpConfig::new(&cq)
                    .max_send_wr(tuning.tx_depth)
                    .max_recv_wr(receives)
                    .max_inline(tuning.inline_bytes),
            )
            .doing("creating a queue pair")?;
        let len = tuning.layout.half_bytes.saturating_mul(2);
        let memory = match tuning.memory {
            Memory::Library => pd.allocate(len, Access::ALL),
            Memory::Caller => pd.register_vec(vec![0; len], Access::ALL),
        };
        let memory = memory.doing("registering memory")?;
        // Touched once, so that no page is new while we measure.
        memory.fill(0, len, 0).doing("registering memory")?;
        let asked = PathMtu::largest_below(u32::from(tuning.mtu)).unwrap_or(PathMtu::B256);
        Ok(Self {
            completions: [WorkCompletion::EMPTY; POLL_MAX],
            qp,
            tie: None,
            cq,
            memory,
            remote: RemoteSlice { addr: 0, rkey: Rkey(0) },
            far: Gid([0; 16]),
            inline: Inline::new(usize::try_from(tuning.inline_bytes).unwrap_or(0)),
            gid_index,
            marks: (tuning.traffic_class, tuning.hop_limit),
            mtu: asked.min(context.query_port().active_mtu),
            context,
        })
    }

    fn contact(&self) -> Result<Contact, Failure> {
        let address = self.qp.address_at(self.gid_index).doing("asking for an address")?;
        Ok(Contact {
            qpn: address.qpn.get(),
            psn: address.psn.get(),
            gid: address.gid.0,
            mtu: self.mtu.bytes(),
            addr: self.memory.addr(),
            rkey: self.memory.rkey().0,
            reads: self.reads(),
            listens: None,
        })
    }

    /// The address that is used of the device.
    fn ip(&self) -> Result<IpAddr, Failure> {
        let mut gids = self.context.device().gids.iter();
        let entry = gids.find(|entry| entry.index == self.gid_index);
        entry.map(|entry| entry.ip()).ok_or_else(|| Failure::failed("the device has no such GID"))
    }

    fn connect(&mut self, contact: &Contact) -> Result<(), Failure> {
        let theirs = PathMtu::largest_below(contact.mtu).unwrap_or(PathMtu::B256);
        self.mtu = self.mtu.min(theirs);
        self.remote = RemoteSlice { addr: contact.addr, rkey: Rkey(contact.rkey) };
        self.far = Gid(contact.gid);
        if let Some(to) = contact.listens {
            self.tie = Some(Tie::new(to, &self.qp, self.marks.0, BUSY_HOST_TIMEOUT)?);
        }
        if let Some(tie) = &self.tie {
            self.mtu = tie.mtu().unwrap_or(self.mtu);
            return Ok(());
        }
        let reads = self.reads().min(contact.reads);
        let how = RcConnect::new(contact.remote())
            .max_rd_atomic(reads)
            .max_dest_rd_atomic(reads)
            .gid_index(self.gid_index)
            .traffic_class(self.marks.0)
            .hop_limit(self.marks.1)
            .path_mtu(self.mtu)
            .timeout(BUSY_HOST_TIMEOUT);
        self.qp.connect(how).doing("connecting the queue pair")
    }

    /// READs under way at once that the device allows, each way.
    fn reads(&self) -> u8 {
        let device = self.context.query_device();
        device.max_qp_rd_atom.min(device.max_qp_init_rd_atom)
    }

    /// The path MTU that both sides keep to, in bytes.
    pub(crate) fn mtu(&self) -> u16 {
        u16::try_from(self.mtu.bytes()).unwrap_or(u16::MAX)
    }

    /// The way that the bytes go.
    pub(crate) fn path(&self) -> Path {
        match self.context.device().provider {
            Provider::Soft => Path::of(self.qp.path()),
            Provider::Hw(_) => Path::Hw,
        }
    }

    /// The name of the device.
    pub(crate) fn device(&self) -> &str {
        &self.context.device().name
    }

    /// Posts up to `N` requests in one call.
    #[inline]
    fn post_batch<const N: usize>(&mut self, batch: &[Request]) -> Result<(), Failure> {
        let mut sges = [NO_SGE; N];
        for (at, (request, sge)) in batch.iter().zip(&mut sges).enumerate() {
            if self.inline.takes(request) {
                let place = self.inline.place_mut(at, request.bytes);
                self.memory.read(request.local, place).doing("posting a request")?;
            } else {
                let piece = self.memory.sge(request.local, request.bytes);
                *sge = piece.doing("posting a request")?;
            }
        }
        let mut works = [NO_WORK; N];
        let places = works.iter_mut().zip(sges.chunks(1));
        for (at, (request, (work, piece))) in batch.iter().zip(places).enumerate() {
            self.describe(work, at, request, piece);
        }
        let works = works.get(..batch.len()).unwrap_or(&works);
        // SAFETY: there is no reference to the bytes of an `Mr` (see the header).
        let posted = unsafe { self.qp.post_send(works) };
        posted.map_err(|refused| Failure::Failed(format!("posting a request: {refused}")))
    }

    #[inline]
    fn post_receive_batch(&self, batch: &[ReceiveWork<'_>]) -> Result<(), Failure> {
        // SAFETY: there is no reference to the bytes of an `Mr` (see the header).
        let posted = unsafe { self.qp.post_recv(batch) };
        posted.map_err(|refused| Failure::Failed(format!("posting a receive: {refused}")))
    }

    /// Makes `work` say what request `at` of a batch is, as the verbs want it.
    #[inline]
    fn describe<'a>(
        &'a self,
        work: &mut SendWork<'a>,
        at: usize,
        request: &Request,
        piece: &'a [Sge],
    ) {
        let offset = u64::try_from(request.remote).unwrap_or(u64::MAX);
        let RemoteSlice { addr: va, rkey } = self.remote.plus(offset);
        match request.op {
            Op::Send => {}
            Op::Write => work.kind = SendKind::Write { va, rkey, imm: None },
            Op::Read => work.kind = SendKind::Read { va, rkey },
        }
        work.data = if self.inline.takes(request) {
            SendData::Inline(self.inline.place(at, request.bytes))
        } else {
            SendData::Gather(piece)
        };
        work.signaled = request.signaled;
    }

    /// A request has failed: why, and what was counted on the way there.
    #[cold]
    fn failed(&self, completion: WorkCompletion) -> Failure {
        let port = self.context.counters();
        let mut counted: Vec<_> = [
            ("ack_timeout", self.qp.counters().ack_timeout),
            ("rcvd_seq_err", self.qp.counters().rcvd_seq_err),
            ("rcvd_rnr_err", self.qp.counters().rcvd_rnr_err),
            ("out_of_seq_request", self.qp.counters().out_of_seq_request),
            ("dropped_pkts", self.qp.counters().dropped_pkts),
        ]
        .into_iter()
        .chain(port.iter())
        .filter(|(_, count)| *count > 0)
        .map(|(name, count)| format!("{name} {count}"))
        .collect();
        if counted.is_empty() {
            counted.push("nothing".to_owned());
        }
        let status = completion.status;
        let mut why = WorkError(completion).to_string();
        let gids = self.context.gids();
        if let Some(near) = gids.iter().find(|entry| entry.index == self.gid_index)
            && status == WcStatus::RetryExceeded
        {
            let route = Route::new(near.gid, self.far, self.qp.path());
            why = format!("{why}: {}", route.silence());
        }
        Failure::Failed(format!("{why} (counted here: {})", counted.join(", ")))
    }
}

impl Endpoint for QueuePair {
    #[inline]
    fn post(&mut self, list: &[Request]) -> Result<(), Failure> {
        if let [one] = list {
            return self.post_batch::<1>(&[*one]);
        }
        list.chunks(BATCH_MAX).try_for_each(|batch| self.post_batch::<BATCH_MAX>(batch))
    }

    #[inline]
    fn post_receives(&mut self, offset: usize, bytes: usize, count: u32) -> Result<(), Failure> {
        let sges = [self.memory.sge(offset, bytes).doing("posting a receive")?];
        let work = ReceiveWork { wr_id: 0, sges: &sges, buffer: None };
        if count == 1 {
            return self.post_receive_batch(&[work]);
        }
        let works = [work; BATCH_MAX];
        let mut left = usize::try_from(count).doing("posting a receive")?;
        while left > 0 {
            let batch = works.get(..left).unwrap_or(&works);
            left -= batch.len();
            self.post_receive_batch(batch)?;
        }
        Ok(())
    }

    #[inline]
    fn poll(&mut self) -> Result<Reaped, Failure> {
        let taken = self.cq.poll(&mut self.completions).doing("polling")?;
        let mut reaped = Reaped::default();
        for completion in self.completions.iter().take(taken) {
            if completion.status != WcStatus::Success {
                return Err(self.failed(*completion));
            }
            let receives = [WcOpcode::Receive, WcOpcode::ReceiveRdmaWithImm];
            if receives.contains(&completion.opcode) {
                reaped.receives += 1;
            } else {
                reaped.requests += 1;
            }
        }
        Ok(reaped)
    }

    #[inline]
    fn load(&self, offset: usize) -> u8 {
        self.memory.load_u8(offset).unwrap_or(0)
    }

    fn store(&mut self, offset: usize, byte: u8) {
        self.write(offset, &[byte]);
    }

    fn write(&mut self, offset: usize, bytes: &[u8]) {
        let done = self.memory.write(offset, bytes);
        debug_assert!(done.is_ok(), "the layout lies within the memory");
    }
}

/// Requests posted in one call, at most; a longer list takes several.
const BATCH_MAX: usize = 32;
/// 4.096 µs · 2¹⁷, half a second, seven times again: on a busy machine the other side may not get a processor for longer than
/// a packet may be under way on a network. Two containers or virtual machines may share one, though their addresses differ.
pub(super) const BUSY_HOST_TIMEOUT: AckTimeout = match AckTimeout::from_exponent(17) {
    Ok(timeout) => timeout,
    Err(_) => AckTimeout::FOREVER,
};
/// Completions taken by one poll.
const POLL_MAX: usize = 32;
/// Fills an array of pieces.
const NO_SGE: Sge = Sge { addr: 0, len: 0, lkey: 0 };
/// Fills an array of requests: a SEND of nothing.
pub(super) const NO_WORK: SendWork<'static> = SendWork {
    to: SendTo::Peer,
    wr_id: 0,
    kind: SendKind::Send { imm: None },
    data: SendData::Gather(&[]),
    signaled: false,
    solicited: false,
    fence: false,
    buffer: None,
};
