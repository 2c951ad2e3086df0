//! The XRC home of an XRC target queue pair: decides which process serves its next request.
//!
//! The queues that requests name belong to several processes, and each process serves what is for its
//! own: it has the receives, the memory and the completion queues. The target's process sees all
//! packets first, in order. It serves what is for its own queues, and *delegates to* another process what
//! is for that one's (`control_message.rs`); there a *proxy* of the target does the work and answers the peer.
//! One of them is at work at a time. Another's turn comes when the one before has served everything and
//! sent all its answers; what arrives until then is *parked*, up to a bound, and is lost beyond it.
//!
//! The other process may be slow, or die. It reports before it acknowledges, so whatever the peer knows
//! to be done is known here too: the target goes on from there, without it. No process is waited for except
//! in the order of requests, and the peer's time-out bounds that.
//!
//! Nothing here reads a packet or sends a control message; `progress/xrc_proxies.rs` does.

use crate::registry::relay::Passed;
use crate::registry::{DomainName, Member, Registry};
use adverb_engine::{Standing, Time};
use adverb_wire::{Marks, Psn, Qpn};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};

/// Facts of a request packet that the XRC home needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head {
    pub(crate) psn: Psn,
    /// Sequence numbers that it takes.
    pub(crate) span: u32,
    /// It is a message's last packet.
    pub(crate) is_end: bool,
    /// A READ or an atomic: only the process that served it can answer it again.
    pub(crate) brings_data: bool,
}

/// State of the target's own responder.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Own {
    pub(crate) standing: Standing,
    pub(crate) mid_message: bool,
    pub(crate) owes_data: bool,
}

/// Decision about a packet.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[must_use]
pub(crate) enum Step {
    /// Serve it here.
    Serve,
    /// Serve it here, from where the proxy has come to.
    Resume(Standing),
    /// Charge this device with it.
    Delegate(Member),
    /// Have this device answer it again.
    Again(Member),
    /// Keep it until those before it are served.
    Park,
    /// It is of no use.
    Drop,
}

/// The process that is at work.
#[derive(Clone, Copy, Debug)]
enum Holder {
    Here,
    There(Epoch),
}

#[derive(Clone, Copy, Debug)]
struct Epoch {
    member: Member,
    /// What has been served, as far as is known.
    known: Standing,
    /// What comes after the last packet that was delegated to it.
    top: Psn,
    /// That packet was not a message's last.
    mid_message: bool,
    /// It has sent all answers that it owes.
    idle: bool,
}

impl Epoch {
    /// Everything is served, and all answers are sent.
    fn is_settled(&self) -> bool {
        self.idle && self.known.expected == self.top && !self.mid_message
    }
}

/// Packets that wait for their turn.
#[derive(Debug, Default)]
pub(crate) struct Parked {
    bytes: Vec<u8>,
    packets: Vec<(usize, SocketAddr, IpAddr)>,
}

impl Parked {
    const BYTES_MAX: usize = 1 << 20;

    fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    fn clear(&mut self) {
        self.bytes.clear();
        self.packets.clear();
    }

    fn has_room(&self, len: usize) -> bool {
        self.bytes.len() + len <= Self::BYTES_MAX
    }

    fn push(&mut self, passed: &Passed<'_>) {
        self.bytes.extend_from_slice(passed.bytes);
        self.packets.push((passed.bytes.len(), passed.source, passed.target));
    }

    /// The packets, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Passed<'_>> {
        let mut rest = &*self.bytes;
        self.packets.iter().map(move |&(len, source, target)| {
            let (bytes, more) = rest.split_at_checked(len).unwrap_or_default();
            rest = more;
            Passed { source, target, marks: Marks::USUAL, segment: None, bytes }
        })
    }
}

/// The XRC home.
#[derive(Debug)]
pub(crate) struct XrcHome {
    name: DomainName,
    /// Which of the target's lives this is.
    life: u64,
    /// Grows whenever the requests are delegated to another process.
    epoch: u64,
    holder: Holder,
    parked: Parked,
    /// What comes after the last packet that is parked.
    parked_top: Psn,
    /// Other devices that have the domain open, and when that was last looked up.
    members: Vec<Member>,
    seen: Option<u32>,
    /// When the proxy was last asked how far it has come.
    asked: Time,
}

impl XrcHome {
    pub(crate) fn new(name: DomainName) -> Self {
        Self {
            name,
            asked: Time::ZERO,
            life: 0,
            epoch: 0,
            holder: Holder::Here,
            parked: Parked::default(),
            parked_top: Psn::new(0),
            members: Vec::new(),
            seen: None,
        }
    }

    pub(crate) fn name(&self) -> DomainName {
        self.name
    }

    pub(crate) fn life(&self) -> u64 {
        self.life
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Whose queue this is, if it is of another device that has the domain open.
    pub(crate) fn owner(&mut self, srq: Qpn, registry: &Registry) -> Option<Member> {
        let slot = registry.owner(srq).filter(|slot| *slot != registry.slot())?;
        let changes = registry.domain_changes();
        if self.seen != Some(changes) {
            self.members.clear();
            self.members.extend(registry.claimants(self.name));
            self.seen = Some(changes);
        }
        self.members.iter().find(|member| member.slot == slot).copied()
    }

    /// Everything is served here, and nothing waits.
    pub(crate) fn is_at_rest(&self) -> bool {
        matches!(self.holder, Holder::Here) && self.parked.is_empty()
    }

    /// This packet was delegated to another device: the peer misses its answer.
    pub(crate) fn is_late(&self, psn: Psn) -> bool {
        matches!(self.holder, Holder::There(epoch) if psn.since(epoch.top) < 0)
    }

    /// The device that is at work, if it is another.
    pub(crate) fn proxy(&self) -> Option<Member> {
        match self.holder {
            Holder::Here => None,
            Holder::There(epoch) => Some(epoch.member),
        }
    }

    /// What is known to be served, while another device is at work.
    pub(crate) fn known(&self) -> Option<Standing> {
        match self.holder {
            Holder::Here => None,
            Holder::There(epoch) => Some(epoch.known),
        }
    }

    /// The target begins another life: whatever was before is over.
    pub(crate) fn begin(&mut self) {
        static LIVES: AtomicU64 = AtomicU64::new(1);
        self.life = LIVES.fetch_add(1, Ordering::Relaxed); // Numbers of queue pairs are used again.
        self.holder = Holder::Here;
        self.parked.clear();
    }

    /// Says what to do with a request packet whose queue belongs to `owner`, if that is another device.
    pub(crate) fn on_request(&mut self, head: Head, owner: Option<Member>, own: Own) -> Step {
        let next = match self.holder {
            Holder::Here => own.standing.expected,
            Holder::There(epoch) => epoch.top,
        };
        let ahead = head.psn.since(next);
        if !self.parked.is_empty() && ahead >= 0 {
            return match head.psn.since(self.parked_top) {
                0 => Step::Park,
                ..0 => Step::Drop, // It is parked already.
                1.. => self.out_of_order(),
            };
        }
        match self.holder {
            Holder::Here => match (ahead, owner) {
                (0, Some(owner)) if !own.mid_message => match own.owes_data {
                    true => Step::Park,
                    false => self.delegate(owner, own.standing, head),
                },
                (..0, Some(owner)) if head.brings_data => Step::Again(owner),
                (_, _) => Step::Serve,
            },
            Holder::There(epoch) if ahead < 0 => Self::on_repeated(epoch, head, owner, own),
            Holder::There(epoch) if ahead > 0 => Step::Delegate(epoch.member),
            Holder::There(epoch) if epoch.mid_message || owner == Some(epoch.member) => {
                let (top, mid_message) = (epoch.top.plus(head.span), !head.is_end);
                self.holder = Holder::There(Epoch { top, mid_message, idle: false, ..epoch });
                Step::Delegate(epoch.member)
            }
            Holder::There(epoch) if !epoch.is_settled() => Step::Park,
            Holder::There(epoch) => match owner {
                Some(owner) => self.delegate(owner, epoch.known, head),
                None => {
                    self.holder = Holder::Here;
                    Step::Resume(epoch.known)
                }
            },
        }
    }

    /// A packet that was already delegated to the proxy at work, or to one before it.
    fn on_repeated(epoch: Epoch, head: Head, owner: Option<Member>, own: Own) -> Step {
        let unknown = head.psn.since(epoch.known.expected) >= 0;
        match owner {
            _ if unknown || !head.brings_data => Step::Delegate(epoch.member),
            Some(owner) => Step::Again(owner),
            None if head.psn.since(own.standing.expected) < 0 => Step::Serve,
            None => Step::Drop,
        }
    }

    /// A packet that comes after one that has not come.
    fn out_of_order(&self) -> Step {
        match self.holder {
            // The process at work tells the peer what is missing; if that was dropped here, the peer is told when
            // there is room again.
            Holder::There(epoch) if self.parked.has_room(usize::from(u16::MAX)) => {
                Step::Delegate(epoch.member)
            }
            Holder::There(_) | Holder::Here => Step::Drop,
        }
    }

    fn delegate(&mut self, member: Member, known: Standing, head: Head) -> Step {
        let (top, mid_message) = (known.expected.plus(head.span), !head.is_end);
        self.epoch += 1;
        self.holder = Holder::There(Epoch { member, known, top, mid_message, idle: false });
        Step::Delegate(member)
    }

    /// Keeps a packet; it is lost if there is no room.
    pub(crate) fn park(&mut self, head: Head, passed: &Passed<'_>) {
        if self.parked.has_room(passed.bytes.len()) {
            self.parked.push(passed);
            self.parked_top = head.psn.plus(head.span);
        }
    }

    /// It is time to ask the proxy, which a parked packet waits for.
    pub(crate) fn asks(&mut self, now: Time) -> bool {
        let due = now.nanos().saturating_sub(self.asked.nanos()) >= Self::ASK_NANOS;
        if due {
            self.asked = now;
        }
        due
    }

    /// How often a proxy is asked that a parked packet waits for.
    pub(crate) const ASK_NANOS: u64 = 5_000_000;

    /// Packets are parked.
    pub(crate) fn has_parked(&self) -> bool {
        !self.parked.is_empty()
    }

    /// The packets that are parked, if the first one's turn has come.
    pub(crate) fn unpark(&mut self, own: Own) -> Option<Parked> {
        let ready = match self.holder {
            Holder::Here => !own.owes_data,
            Holder::There(epoch) => epoch.is_settled(),
        };
        (ready && self.has_parked()).then(|| std::mem::take(&mut self.parked))
    }

    /// The proxy says how far it has come; false if that cannot be.
    pub(crate) fn on_report(
        &mut self,
        from: Member,
        epoch: u64,
        done: Standing,
        idle: bool,
    ) -> bool {
        let Holder::There(known) = &mut self.holder else {
            return false;
        };
        let possible = known.member == from
            && self.epoch == epoch
            && done.expected.since(known.known.expected) >= 0
            && done.expected.since(known.top) <= 0;
        if possible {
            (known.known, known.idle) = (done, idle);
        }
        possible
    }

    /// The proxy at work is gone: the target's own responder goes on from what is known.
    pub(crate) fn on_death(&mut self) -> Option<Standing> {
        let Holder::There(epoch) = self.holder else {
            return None;
        };
        self.holder = Holder::Here;
        if epoch.known.expected != epoch.top {
            self.parked.clear(); // The peer has to send again what comes before them.
        }
        Some(epoch.known)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::SlotId;
    use adverb_wire::Msn;

    const START: u32 = 0x00ff_fffe;

    fn member(n: u32) -> Member {
        Member { slot: SlotId::new(n).unwrap(), serial: 1 }
    }

    fn home() -> XrcHome {
        let mut home = XrcHome::new(DomainName::from_words([0; 5]));
        home.begin();
        home
    }

    fn standing(at: u32) -> Standing {
        Standing { expected: Psn::new(START).plus(at), msn: Msn::new(at) }
    }

    fn own(at: u32) -> Own {
        Own { standing: standing(at), mid_message: false, owes_data: false }
    }

    fn head(at: u32) -> Head {
        Head { psn: Psn::new(START).plus(at), span: 1, is_end: true, brings_data: false }
    }

    fn part(at: u32) -> Head {
        Head { is_end: false, ..head(at) }
    }

    fn packet(bytes: &[u8]) -> Passed<'_> {
        let source = "127.0.0.1:4791".parse().unwrap();
        let target = IpAddr::from([127, 0, 0, 1]);
        Passed { source, target, marks: Marks::USUAL, segment: None, bytes }
    }

    const ONE: u32 = 1;
    const TWO: u32 = 2;

    #[test]
    fn another_process_is_delegated_to_in_order_and_its_successor_when_it_has_settled() {
        let mut home = home();
        let (one, two) = (Some(member(ONE)), Some(member(TWO)));
        assert_eq!(home.on_request(head(0), None, own(0)), Step::Serve);
        // A message for another, in two packets; its second goes where the first went.
        assert_eq!(home.on_request(part(1), one, own(1)), Step::Delegate(member(ONE)));
        assert_eq!(home.on_request(head(2), two, own(1)), Step::Delegate(member(ONE)));
        assert_eq!(home.on_request(head(3), one, own(1)), Step::Delegate(member(ONE)));
        for at in [4, 5] {
            assert_eq!(home.on_request(head(at), two, own(1)), Step::Park);
            home.park(head(at), &packet(&[u8::try_from(at).unwrap()]));
        }
        // What is parked is not parked again, and what is missing after it is the proxy's to tell.
        assert_eq!(home.on_request(head(4), two, own(1)), Step::Drop);
        assert_eq!(home.on_request(head(7), one, own(1)), Step::Delegate(member(ONE)));
        let epoch = home.epoch();
        assert!(home.on_report(member(ONE), epoch, standing(3), true));
        assert!(home.unpark(own(1)).is_none());
        assert!(home.on_report(member(ONE), epoch, standing(4), false));
        assert!(home.unpark(own(1)).is_none());
        assert!(home.on_report(member(ONE), epoch, standing(4), true));
        let parked = home.unpark(own(1)).unwrap();
        let bytes: Vec<_> = parked.iter().map(|passed| passed.bytes.to_vec()).collect();
        assert_eq!(bytes, [[4], [5]]);
        assert_eq!(home.on_request(head(4), two, own(1)), Step::Delegate(member(TWO)));
        assert_eq!(home.on_request(head(5), two, own(1)), Step::Delegate(member(TWO)));
        // Back home, when everything is done.
        assert_eq!(home.on_request(head(6), None, own(1)), Step::Park);
        assert!(home.on_report(member(TWO), home.epoch(), standing(6), true));
        let resumed = Step::Resume(standing(6));
        assert_eq!(home.on_request(head(6), None, own(1)), resumed);
        assert_eq!(home.on_request(head(7), None, own(7)), Step::Serve);
    }

    #[test]
    fn repeated_requests_go_to_the_process_that_has_served_them() {
        let mut home = home();
        let (one, two) = (Some(member(ONE)), Some(member(TWO)));
        let read = |at| Head { brings_data: true, span: 2, ..head(at) };
        assert_eq!(home.on_request(read(0), one, own(0)), Step::Delegate(member(ONE)));
        assert_eq!(home.on_request(read(0), one, own(0)), Step::Delegate(member(ONE)));
        assert!(home.on_report(member(ONE), home.epoch(), standing(2), true));
        assert_eq!(home.on_request(head(2), two, own(0)), Step::Delegate(member(TWO)));
        assert_eq!(home.on_request(read(0), one, own(0)), Step::Again(member(ONE)));
        assert_eq!(home.on_request(head(1), one, own(0)), Step::Delegate(member(TWO)));
        // No process has served that, and none may now.
        assert_eq!(home.on_request(read(0), None, own(0)), Step::Drop);
        assert!(home.on_report(member(TWO), home.epoch(), standing(3), true));
        assert_eq!(home.on_request(read(3), None, own(0)), Step::Resume(standing(3)));
        assert_eq!(home.on_request(read(0), one, own(5)), Step::Again(member(ONE)));
        assert_eq!(home.on_request(read(3), None, own(5)), Step::Serve);
        // Answers of one's own go first.
        let owing = Own { owes_data: true, ..own(5) };
        assert_eq!(home.on_request(head(5), one, owing), Step::Park);
    }

    /// Goal: a proxy is believed about what was delegated to it, and not about another's work.
    #[test]
    fn a_report_that_cannot_be_changes_nothing() {
        let mut home = home();
        let epoch = home.epoch();
        assert!(!home.on_report(member(ONE), epoch, standing(0), true));
        let _ = home.on_request(head(0), Some(member(ONE)), own(0));
        let epoch = home.epoch();
        for (from, epoch, at) in [
            (member(TWO), epoch, 1),
            (member(ONE), epoch - 1, 1),
            (member(ONE), epoch, 2),
            (Member { serial: 2, ..member(ONE) }, epoch, 1),
        ] {
            assert!(!home.on_report(from, epoch, standing(at), true));
        }
        assert!(home.on_report(member(ONE), epoch, standing(1), true));
        assert!(!home.on_report(member(ONE), epoch, standing(0), true));
    }

    #[test]
    fn the_death_of_a_proxy_leaves_what_it_has_reported() {
        let mut home = home();
        let one = Some(member(ONE));
        for at in 0..3 {
            assert_eq!(home.on_request(head(at), one, own(0)), Step::Delegate(member(ONE)));
        }
        assert_eq!(home.on_request(head(3), None, own(0)), Step::Park);
        home.park(head(3), &packet(b"x"));
        assert!(home.on_report(member(ONE), home.epoch(), standing(2), true));
        assert_eq!(home.on_death(), Some(standing(2)));
        assert!(!home.has_parked() && home.on_death().is_none());
        assert_eq!(home.on_request(head(2), None, own(2)), Step::Serve);
    }

    #[test]
    fn what_is_parked_has_a_bound() {
        let mut home = home();
        let _ = home.on_request(head(0), Some(member(ONE)), own(0));
        let bytes = vec![0; 4096];
        let mut at = 1;
        while home.on_request(head(at), None, own(0)) == Step::Park && at < 1000 {
            home.park(head(at), &packet(&bytes));
            at += 1;
        }
        assert!(home.parked.bytes.len() <= Parked::BYTES_MAX);
        assert_eq!(home.parked.packets.len(), Parked::BYTES_MAX / bytes.len());
        assert_eq!(home.on_request(head(at), None, own(0)), Step::Drop);
    }
}
