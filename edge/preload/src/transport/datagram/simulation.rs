//! Senders, the kernel and receivers of a port, at random, from seeds: the mailbox's words, [`Ways`] and [`order`] as they
//! are, with a kernel that brings datagrams late, drops them where a queue is full, and changes its mind about which
//! socket of a port gets them. `ADVERB_TEST_MAILBOX_SEED=0x…` runs one seed and says what happened, `ADVERB_TEST_MAILBOX_SEEDS=N`
//! the first N.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::CString;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;

use adverb_shm::file::{Expect, SharedFile};

use super::mailbox::{About, Empty, Mailbox, Sent, Sleep};
use super::order::{self, KernelQueue, Next};
use super::ways::{Counted, Verdict, Way, Ways};
use crate::base::iovec::IoCursor;
use crate::base::raw::Errno;
use crate::base::thread::Here;

/// What may happen beside sends and receives.
#[derive(Clone, Copy, Debug, Default)]
struct May {
    /// Another socket of the port gets what the kernel brings.
    turn: bool,
    /// A receiver closes its socket, and another one has the port.
    close: bool,
    /// A sender is killed, or closes its socket, and another one has its address.
    end: bool,
    /// The kernel loses datagrams without counting them, as a firewall does.
    lose: bool,
    /// Any word of a mailbox holds nonsense.
    scribble: bool,
    /// Two threads read: the other one also does while the one sleeps, or has not noted yet what has woken it.
    share: bool,
    /// But one sender sends, and the receiver's queue is short.
    alone: bool,
}

/// xorshift64*, Marsaglia 2003, Vigna 2016.
#[derive(Clone, Copy, Debug)]
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, end: u64) -> u64 {
        (self.next() >> 33) % end
    }

    fn index(&mut self, end: usize) -> usize {
        usize::try_from(self.below(u64::try_from(end).expect("small"))).expect("small")
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// A datagram: which socket has sent it, and its number there.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
struct Id {
    cookie: u64,
    number: u64,
}

#[derive(Clone, Copy, Debug)]
struct Packet {
    id: Id,
    from: SocketAddr,
    /// How many had been dropped when it was queued.
    drops: u32,
}

/// What has brought a datagram.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum By {
    Mailbox,
    Kernel,
}

/// A socket that receives.
struct Receiver {
    file: SharedFile,
    cookie: u64,
    mailbox: Rc<Mailbox>,
    queue: VecDeque<Packet>,
    drops: u32,
    /// It sleeps in the kernel; whether senders know that it reads when it wakes up.
    asleep: Option<bool>,
    /// What has woken it, and is not noted yet.
    woken: Option<Packet>,
    /// What was peeked at.
    peeked: Option<Id>,
    /// The last number of each sender: of those by the mailbox, and by the kernel.
    last: BTreeMap<u64, [u64; 2]>,
    /// The program holds senders off.
    is_held: bool,
}

/// A socket that sends.
struct Sending {
    cookie: u64,
    from: SocketAddr,
    ways: Ways,
    /// It knows of mailboxes.
    is_ours: bool,
    /// Datagrams so far; one is being given to the kernel.
    sent: u64,
    is_giving: bool,
    /// Which receiver the kernel brings its datagrams to.
    to: usize,
}

struct World {
    random: Random,
    may: May,
    receivers: Vec<Receiver>,
    senders: Vec<Sending>,
    /// On their way in the kernel, in order: and to which receiver.
    flight: VecDeque<(Packet, usize)>,
    sent: BTreeSet<Id>,
    /// Those that were received, dropped, or lost by what may happen.
    done: BTreeSet<Id>,
    /// Sent again, so that they may come late.
    again: BTreeSet<Id>,
    /// On their way, or unread, when a receiver closed its socket.
    left: BTreeSet<Id>,
    now: u64,
    cookies: u64,
    /// Senders that know of mailboxes.
    ours: usize,
    /// Datagrams are on their way in the kernel for a while.
    is_slow: bool,
    /// Receivers' queues are short.
    is_short: bool,
    says: bool,
    by_mailbox: u64,
    knocked: u64,
}

/// What a receiver's queue holds.
const QUEUE: usize = 6;
/// Senders, one of which knows nothing of mailboxes.
const SENDERS: usize = 4;

/// What another thread does while a reader asks whether the kernel's queue is empty: it sends, before the answer and after.
struct Meanwhile<'a> {
    sender: &'a mut Sending,
    at: usize,
    /// One bit each.
    sends: u64,
    sent: &'a mut BTreeSet<Id>,
    /// What the receiver has dropped so far.
    drops: u32,
}

impl Meanwhile<'_> {
    fn run(&mut self, queue: &mut VecDeque<Packet>) -> bool {
        self.send(self.sends & 1 != 0, queue);
        let is_empty = queue.is_empty();
        self.send(self.sends & 2 != 0, queue);
        is_empty
    }

    fn send(&mut self, does: bool, queue: &mut VecDeque<Packet>) {
        let Sending { cookie, from, ways, sent, to, is_giving, .. } = &mut *self.sender;
        if !does || *to != self.at || *is_giving {
            return;
        }
        *sent += 1;
        let id = Id { cookie: *cookie, number: *sent };
        match ways.plan(&[], true) {
            Verdict::Kernel { counted, wakes, is_awaited } => {
                queue.push_back(Packet { id, from: *from, drops: self.drops });
                self.sent.insert(id);
                if is_awaited || wakes.is_some() {
                    ways.gave(counted, true, wakes);
                }
            }
            // It has not been sent.
            Verdict::Delivered | Verdict::Dropped | Verdict::Forget { .. } => *sent -= 1,
        }
    }
}

impl KernelQueue for (&mut Receiver, bool, u64) {
    type Arrival = Packet;

    fn receive(&mut self) -> Result<Packet, Errno> {
        let (receiver, peeks, _) = self;
        let first =
            if *peeks { receiver.queue.front().copied() } else { receiver.queue.pop_front() };
        first.ok_or(Errno::AGAIN)
    }

    fn empty(&mut self) -> Option<Empty> {
        empty(&self.0.queue, self.2, self.0.drops)
    }

    fn first(&mut self) -> Option<(SocketAddr, u32)> {
        self.0.queue.front().map(|first| (first.from, first.drops))
    }

    fn drops(&mut self) -> Result<u32, Errno> {
        Ok(self.0.drops)
    }

    fn now_ns(&mut self) -> u64 {
        self.2
    }
}

/// What is seen of a queue that is empty.
fn empty(queue: &VecDeque<Packet>, now_ns: u64, drops: u32) -> Option<Empty> {
    queue.is_empty().then_some(Empty { now_ns, drops })
}

impl World {
    fn new(seed: u64, may: May, says: bool) -> Self {
        let random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let (receivers, senders) = (Vec::new(), Vec::new());
        let ours = if seed.is_multiple_of(2) { 1 } else { SENDERS - 1 };
        let mut world = Self {
            random,
            may,
            receivers,
            senders,
            flight: VecDeque::new(),
            sent: BTreeSet::new(),
            done: BTreeSet::new(),
            again: BTreeSet::new(),
            left: BTreeSet::new(),
            now: 1,
            cookies: 0,
            ours,
            is_slow: seed % 3 == 1 && !may.alone,
            is_short: seed % 3 == 2 || may.alone,
            says,
            by_mailbox: 0,
            knocked: 0,
        };
        for _ in 0..1 + usize::from(may.turn) {
            let receiver = world.receiver();
            world.receivers.push(receiver);
        }
        for index in 0..SENDERS {
            let sender = world.sender(index);
            world.senders.push(sender);
        }
        world
    }

    fn say(&self, what: impl FnOnce() -> String) {
        if self.says {
            println!("{:>10} {}", self.now, what());
        }
    }

    fn cookie(&mut self) -> u64 {
        self.cookies += 1;
        self.cookies
    }

    fn receiver(&mut self) -> Receiver {
        let cookie = self.cookie();
        let name = format!("adverb-simulated-{}-{cookie}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let text = CString::new(path.to_str().expect("a path")).expect("a path");
        let file = SharedFile::open_own(&text, Expect::Nothing, 1).expect("a file");
        let about = About { cookie, inode: 8, port: 9, domain: libc::AF_INET, is_v6_only: false };
        // 128 KiB, so that rings go round; half of what they could hold is charged at most.
        let mailbox = Mailbox::make(&file, &about, 1 << 17).expect("a mailbox");
        std::fs::remove_file(path).expect("it is there");
        mailbox.let_senders(0, 0);
        if self.may.share {
            let reads = || mailbox.let_sleeper_wake(Here::find(), true);
            std::thread::scope(|threads| _ = threads.spawn(reads));
            reads();
        }
        let (queue, last) = (VecDeque::new(), BTreeMap::new());
        let (asleep, woken, peeked, is_held) = (None, None, None, false);
        Receiver {
            file,
            cookie,
            mailbox: Rc::new(mailbox),
            queue,
            drops: 0,
            asleep,
            woken,
            peeked,
            last,
            is_held,
        }
    }

    fn sender(&mut self, index: usize) -> Sending {
        let port = 100 + u16::try_from(index).expect("small");
        let from = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port);
        let (ways, is_ours, to) =
            (Ways::default(), index < self.ours, self.random.index(self.receivers.len()));
        Sending { cookie: self.cookie(), from, ways, is_ours, sent: 0, is_giving: false, to }
    }

    /// A sender finds the mailboxes of its destination, as `Route::search` does.
    fn search(&mut self, index: usize) {
        let sender = &mut self.senders[index];
        let is_there = |cookie| self.receivers.iter().any(|receiver| receiver.cookie == cookie);
        sender.ways.0.retain(|way| is_there(way.mailbox.cookie()));
        for receiver in &self.receivers {
            let mut known = sender.ways.0.iter();
            if sender.is_ours && known.all(|way| way.mailbox.cookie() != receiver.cookie) {
                // Nonsense is no mailbox.
                let way = Mailbox::open(&receiver.file, receiver.cookie)
                    .and_then(|mailbox| Way::new(mailbox, sender.cookie, sender.from));
                sender.ways.0.extend(way);
            }
        }
    }

    fn send(&mut self, index: usize) {
        let is_special = self.random.one_in(16);
        let padding = match self.random.below(40) {
            0 => self.random.index(40_000),
            1..=9 => self.random.index(3_000),
            _ => self.random.index(40),
        };
        let sender = &mut self.senders[index];
        sender.sent += 1;
        let id = Id { cookie: sender.cookie, number: sender.sent };
        let mut bytes = [id.cookie.to_ne_bytes(), id.number.to_ne_bytes()].concat();
        bytes.resize(16 + padding, 0);
        let part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        self.sent.insert(id);
        let is_short = bytes.len() <= 512 && !is_special && sender.ways.0.len() == 1;
        if is_short
            && sender.ways.0.first_mut().is_some_and(|way| way.send_short(Here::find(), &part))
        {
            self.by_mailbox += 1;
            return self.say(|| format!("{id:?} by the short way"));
        }
        let verdict = sender.ways.plan(&[part], is_special);
        self.say(|| format!("{id:?} {verdict:?}"));
        match verdict {
            Verdict::Delivered => self.by_mailbox += 1,
            Verdict::Dropped => _ = self.done.insert(id),
            Verdict::Kernel { counted, wakes, is_awaited } => {
                self.give(index, id, counted, wakes, is_awaited)
            }
            Verdict::Forget { is_dead } => {
                self.forget(index, is_dead);
                self.through_kernel(index, id);
            }
        }
    }

    /// Through the kernel, which may refuse it. The call takes a while, meanwhile others go on.
    fn give(
        &mut self,
        index: usize,
        id: Id,
        counted: Counted,
        wakes: Option<Sleep>,
        is_awaited: bool,
    ) {
        let is_taken = !self.random.one_in(50);
        self.senders[index].is_giving = true;
        for _ in 0..self.random.below(3) {
            let at = self.random.index(self.receivers.len());
            self.receive(at, false, false);
        }
        if is_taken {
            self.through_kernel(index, id);
            self.knocked += u64::from(wakes.is_some());
        } else {
            self.done.insert(id);
            self.say(|| format!("{id:?} is refused"));
        }
        for _ in 0..self.random.below(3) {
            let at = self.random.index(self.receivers.len());
            self.receive(at, false, false);
        }
        self.senders[index].is_giving = false;
        // As `outbox::send` has it.
        if is_awaited || !is_taken || wakes.is_some() {
            let ways = &mut self.senders[index].ways;
            if ways.gave(counted, is_taken, wakes) {
                ways.settling();
            }
        }
    }

    fn through_kernel(&mut self, index: usize, id: Id) {
        if self.may.lose && self.random.one_in(20) {
            self.done.insert(id);
            return self.say(|| format!("{id:?} is lost"));
        }
        let packet = Packet { id, from: self.senders[index].from, drops: 0 };
        self.flight.push_back((packet, self.senders[index].to));
        if !self.is_slow || self.random.one_in(2) {
            self.arrive();
        }
    }

    /// The first datagram on its way arrives.
    fn arrive(&mut self) {
        let Some((packet, to)) = self.flight.pop_front() else { return };
        let receiver = &mut self.receivers[to];
        if receiver.queue.len() < QUEUE || !self.is_short {
            receiver.queue.push_back(Packet { drops: receiver.drops, ..packet });
        } else {
            receiver.drops += 1;
            self.done.insert(packet.id);
            self.say(|| format!("{:?} is dropped", packet.id));
        }
    }

    /// What a sender knows of mailboxes is out of date.
    fn forget(&mut self, index: usize, is_dead: bool) {
        let mut again = Vec::new();
        let ways = std::mem::take(&mut self.senders[index].ways);
        for way in ways.0.iter().filter(|way| is_dead && way.is_dead()) {
            way.mailbox.take_back(way.place, |bytes| again.push(id_of(bytes)));
        }
        drop(ways);
        for id in again {
            self.say(|| format!("{id:?} again"));
            self.again.insert(id);
            self.through_kernel(index, id);
        }
    }

    /// A call that receives: without waiting, if that is what the program wants; else it sleeps where there is nothing.
    fn receive(&mut self, index: usize, peeks: bool, waits: bool) {
        let (now, says) = (self.now, self.says);
        let other = if self.may.alone { 0 } else { self.random.index(SENDERS) };
        let sends = self.random.below(4);
        let is_other = self.may.share && self.random.one_in(2);
        let receiver = &mut self.receivers[index];
        if let Some(is_known) = receiver.asleep.filter(|_| !is_other) {
            // Only the kernel's queue wakes it up.
            let Some(packet) = receiver.woken.take() else {
                let Some(packet) = receiver.queue.pop_front() else { return };
                receiver.woken = Some(packet);
                return self.received(index, packet.id, By::Kernel, false);
            };
            // As `inbox::Receiving::sleep` has it.
            receiver.asleep = None;
            let (from, sent) = (Some(packet.from), (Sent::Somewhere, packet.drops));
            let empty = empty(&receiver.queue, now, receiver.drops);
            order::note(&receiver.mailbox, false, from, sent, || empty);
            receiver.mailbox.awake_to_read(is_known);
            return order::settle(&receiver.mailbox, || empty);
        }
        let sender = &mut self.senders[other];
        let (sent, drops) = (&mut self.sent, receiver.drops);
        let mut meanwhile = Meanwhile { sender, at: index, sends, sent, drops };
        if !receiver.mailbox.let_sleeper_wake(Here::find(), true) {
            return;
        }
        let mailbox = Rc::clone(&receiver.mailbox);
        let next = {
            let Some(_held) = mailbox.hold_readers() else { return };
            let mut kernel = (receiver, peeks, now);
            match order::next(&mailbox, peeks, &mut kernel) {
                Ok(Next::Kernel(packet)) => {
                    let (from, sent) = (Some(packet.from), (Sent::Somewhere, packet.drops));
                    let queue = &mut kernel.0.queue;
                    order::note(&mailbox, peeks, from, sent, || {
                        meanwhile.run(queue).then_some(Empty { now_ns: now, drops })
                    });
                    Some((packet.id, By::Kernel))
                }
                Ok(Next::Record(front)) => {
                    let mut bytes = [0; 16];
                    let part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: 16 };
                    let copied = mailbox.copy(&front, &mut IoCursor::new(&[part]));
                    order::taken(&mailbox, peeks, &front);
                    copied.is_ok_and(|copied| copied == 16).then(|| (id_of(&bytes), By::Mailbox))
                }
                Err(_) => None,
            }
        };
        match next {
            Some((id, by)) => self.received(index, id, by, peeks),
            None if waits && self.receivers[index].asleep.is_none() => {
                let receiver = &mut self.receivers[index];
                receiver.asleep = receiver.mailbox.doze_to_read();
                if says {
                    println!("{now:>10} {index} sleeps: {:?}", receiver.asleep);
                }
            }
            None => {}
        }
    }

    fn received(&mut self, index: usize, id: Id, by: By, peeks: bool) {
        self.say(|| format!("{index} has {id:?}{}", if peeks { ", which stays" } else { "" }));
        if self.may.scribble {
            return;
        }
        let receiver = &mut self.receivers[index];
        // Another thread may have taken it meanwhile.
        if let Some(peeked) = receiver.peeked.take().filter(|_| !self.may.share) {
            assert_eq!(peeked, id, "what was peeked at is what comes");
        }
        if peeks {
            receiver.peeked = Some(id);
            return;
        }
        assert!(self.sent.contains(&id), "{id:?} was never sent");
        assert!(self.done.insert(id), "{id:?} comes twice");
        // A record does not wait for long for what has been lost, and what comes after that passes it. Nor is it seen what is
        // on its way when a sender is entered.
        let is_lossy = self.is_short && !self.may.alone;
        let may_pass = self.is_slow || is_lossy || self.may.lose || self.may.turn;
        let may_come_late = may_pass || self.again.contains(&id);
        let last = receiver.last.entry(id.cookie).or_default();
        // What the kernel brings passes the records that lie behind one of another sender that waits.
        let passed = match by {
            By::Mailbox if self.ours > 1 && !self.may.alone => &mut last[0],
            By::Mailbox | By::Kernel => {
                &mut last[usize::from(by == By::Kernel && self.ours > 1 && !self.may.alone)]
            }
        };
        assert!(*passed < id.number || may_come_late, "{id:?} comes late");
        *passed = (*passed).max(id.number);
        // A record waits for what its sender gave to the kernel before.
        let flight = self.flight.iter().filter(|(_, to)| *to == index);
        let flight = flight.map(|(packet, ..)| packet);
        let mut coming = flight.chain(&receiver.queue).map(|packet| packet.id);
        let is_passed = |other: Id| other.cookie == id.cookie && other.number < id.number;
        let has_passed = by == By::Mailbox && coming.any(is_passed);
        assert!(!has_passed || may_come_late, "{id:?} comes early");
    }

    /// A reader that sleeps is woken for what is there.
    fn check(&self) {
        for receiver in self.receivers.iter().filter(|receiver| receiver.asleep.is_some()) {
            let is_woken =
                receiver.woken.is_some() || !receiver.queue.is_empty() || !self.flight.is_empty();
            assert!(
                is_woken || !receiver.mailbox.has_record(),
                "{} sleeps, and has a record",
                receiver.cookie
            );
        }
    }

    fn step(&mut self) {
        let index = if self.may.alone { 0 } else { self.random.index(SENDERS) };
        let at = self.random.index(self.receivers.len());
        self.now += self.random.below(2_000);
        match self.random.below(1_000) {
            0..400 => self.send(index),
            400..700 => {
                let (peeks, waits) = (self.random.one_in(8), self.random.one_in(2));
                self.receive(at, peeks, waits && !peeks);
            }
            700..900 => self.arrive(),
            900..940 => self.search(index),
            940..950 => {
                // The socket is connected, or an option is set: the kernel may choose others from now on.
                self.say(|| format!("{at} turns"));
                self.receivers[at].mailbox.turn();
            }
            950..960 => {
                let receiver = &mut self.receivers[at];
                if receiver.is_held {
                    receiver.mailbox.awake();
                } else {
                    receiver.mailbox.hold();
                }
                receiver.is_held = !receiver.is_held;
                let is_held = receiver.is_held;
                self.say(|| format!("{at} is held: {is_held}"));
            }
            960..970 if self.may.end => {
                let is_killed = self.random.one_in(2);
                let sender = self.sender(index);
                let old = std::mem::replace(&mut self.senders[index], sender);
                self.say(|| format!("{} ends, killed: {is_killed}", old.cookie));
                if is_killed {
                    std::mem::forget(old.ways);
                }
            }
            970..975 if self.may.close => {
                self.say(|| format!("{at} closes"));
                let receiver = self.receiver();
                let old = std::mem::replace(&mut self.receivers[at], receiver);
                old.mailbox.give_up();
                // What has come is gone with the socket, unless the sender looks after it.
                self.done.extend(old.queue.iter().map(|packet| packet.id));
                self.left.extend(self.sent.difference(&self.done));
            }
            975..980 if self.may.turn => {
                let to = self.random.index(self.receivers.len());
                self.senders[index].to = to;
                self.say(|| format!("{} goes to {to}", self.senders[index].cookie));
            }
            // Directories have changed: what is known of the destination is out of date.
            990..993 => {
                self.forget(index, false);
                // With none known, what it sends is not counted: a socket looks for some with its next datagram.
                if self.may.alone {
                    self.search(index);
                }
            }
            980..990 if self.may.scribble => {
                let word = self.random.next();
                let value = match self.random.below(3) {
                    0 => 0,
                    1 => u64::MAX,
                    _ => self.random.next(),
                };
                self.receivers[at].mailbox.scribble(word, value);
            }
            _ => {}
        }
        if !self.may.scribble && !self.may.lose && !self.may.turn {
            self.check();
        }
        let is_level = |receiver: &Receiver| receiver.mailbox.is_level();
        assert!(self.may.scribble || self.receivers.iter().all(is_level));
    }

    /// Nothing more is sent: all that was is received in the end, but for what was dropped.
    fn end(&mut self) {
        for receiver in &mut self.receivers {
            if std::mem::take(&mut receiver.is_held) {
                receiver.mailbox.awake();
            }
            // One that sleeps while the kernel changes its mind reads what it has when it wakes up for something else.
            if let Some(is_known) = receiver.asleep.take_if(|_| self.may.turn || self.may.lose) {
                receiver.mailbox.awake_to_read(is_known);
            }
        }
        for index in 0..self.senders.len() {
            self.forget(index, true);
        }
        let mut idle = 0;
        while idle < 4 {
            let before = self.done.len();
            while !self.flight.is_empty() {
                self.arrive();
                (0..self.receivers.len()).for_each(|at| self.receive(at, false, false));
            }
            // Longer than a record waits for what has been lost.
            self.now += 25_000_000;
            (0..self.receivers.len()).for_each(|at| self.receive(at, false, false));
            idle = if self.done.len() == before { idle + 1 } else { 0 };
        }
        if self.may.scribble {
            return;
        }
        let missing = self.sent.difference(&self.done).filter(|id| !self.left.contains(id));
        let missing: Vec<_> = missing.collect();
        assert!(missing.is_empty(), "not received: {missing:?}");
    }
}

fn id_of(bytes: &[u8]) -> Id {
    let number = |at: usize| {
        let bytes = bytes.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
        bytes.map_or(0, u64::from_ne_bytes)
    };
    Id { cookie: number(0), number: number(8) }
}

/// Runs the seeds of a test. Where it is not said which, `least` datagrams have to go by mailboxes, and a tenth of that many to
/// end sleeps, which is done where one thread reads.
fn run(may: May, least: u64) {
    let one = std::env::var("ADVERB_TEST_MAILBOX_SEED").ok();
    let one = one.map(|one| u64::from_str_radix(one.trim_start_matches("0x"), 16).expect("a seed"));
    let count = std::env::var("ADVERB_TEST_MAILBOX_SEEDS").ok();
    let count: Option<u64> = count.map(|count| count.parse().expect("a number"));
    let is_usual = one.is_none() && count.is_none();
    let seeds = one.map_or(1..count.unwrap_or(100) + 1, |one| one..one + 1);
    let (mut by_mailbox, mut knocked) = (0, 0);
    for seed in seeds {
        let world = std::panic::catch_unwind(|| {
            let mut world = World::new(seed, may, one.is_some());
            (0..2_000).for_each(|_| world.step());
            world.end();
            (world.by_mailbox, world.knocked)
        });
        let Ok(world) = world else { panic!("ADVERB_TEST_MAILBOX_SEED={seed:#x}") };
        (by_mailbox, knocked) = (by_mailbox + world.0, knocked + world.1);
    }
    let is_enough = by_mailbox > least && (may.share || knocked > least / 10);
    assert!(is_enough || !is_usual, "{by_mailbox} by mailbox, {knocked} for sleepers");
}

/// Goal: every datagram comes once, and those of a sender in their order, over the mailbox and the kernel together; a
/// reader that sleeps is woken.
#[test]
fn datagrams_come_once_and_in_order() {
    run(May::default(), 3_000);
}

/// Goal: all of a sender's come in order where the kernel drops some, as long as no other sends.
#[test]
fn what_the_kernel_drops_keeps_none_waiting_or_back() {
    run(May { alone: true, ..May::default() }, 3_000);
}

/// Goal: the same where senders end or are killed, and others have their addresses.
#[test]
fn senders_come_and_go() {
    run(May { end: true, ..May::default() }, 3_000);
}

/// Goal: the same where a second thread reads.
#[test]
fn two_threads_read() {
    run(May { share: true, end: true, ..May::default() }, 1_000);
}

/// Goal: the same where a receiver closes its socket, and another one has its port.
#[test]
fn receivers_come_and_go() {
    run(May { close: true, end: true, ..May::default() }, 3_000);
}

/// Goal: every datagram comes once where two sockets have the port, and the kernel brings datagrams now to the one, now to the
/// other.
#[test]
fn the_kernel_changes_its_mind() {
    run(May { turn: true, ..May::default() }, 300);
}

/// Goal: what is not lost comes once where the kernel loses datagrams that records wait for.
#[test]
fn the_kernel_loses_datagrams() {
    run(May { lose: true, ..May::default() }, 3_000);
}

/// Goal: with nonsense in any word, every call ends, and none writes elsewhere.
#[test]
fn nonsense_in_a_mailbox_harms_no_call() {
    run(May { scribble: true, close: true, end: true, ..May::default() }, 0);
}
