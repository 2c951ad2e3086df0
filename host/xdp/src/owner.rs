//! An owner that serves other processes: takes them in, answers them, and puts in order what they leave.
//!
//! Members of one user are a group, with a UMEM and queues of its own; the first user of an interface gets as many
//! queues as the owner gives to each, and keeps them until another user needs some while it has no members; one for
//! which there is none is refused, for a moment at least. A member has the packets of ports that
//! it holds by a socket of the kernel's, which it shows, and which the owner keeps as long as the member has the packets:
//! nothing can be taken from another that way which the kernel would not give.
//!
//! Nothing here waits for a member: descriptors that members send are looked at and closed by threads of their users
//! (`inspector.rs`), and a lock that a member has is tried again later. One that does not read its answers is ended.

use crate::grant::{self, Greeting, Question, Request};
use crate::inspector::{Claim, Inspectors, Place, Ruling, Verdict};
use crate::interface::{Group, Holding, Interface, KEYS_MAX, Member};
use crate::steering::Key;
use adverb_sys::bpf::XdpMode;
use adverb_sys::clock;
use adverb_sys::epoll::{Epoll, Events, Interest};
use adverb_sys::fork::KeptFd;
use adverb_sys::netns;
use adverb_sys::process;
use adverb_sys::unix::{Credentials, Listener, Stream};
use rustix::pipe::{PipeFlags, pipe_with};
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

/// An interface's owner, and the members that it serves.
#[derive(Debug)]
pub struct Owner {
    interface: Interface,
    listener: Listener,
    epoll: Epoll,
    events: Events,
    /// By user.
    groups: HashMap<u32, Group>,
    /// By place.
    members: HashMap<u32, Served>,
    queues_each: u32,
    /// Keys of one user.
    keys_each: usize,
    inspectors: Inspectors,
    /// How many members there have been.
    taken_in: u64,
    /// No connections are taken before.
    paused: Option<Instant>,
    /// When this owner began, and when it last ended a group.
    since: Instant,
    disbanded: Option<Instant>,
    /// The first user that could not have a group, although there were queues, and why.
    refusal: Option<String>,
}

/// What one user has of an interface.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Count {
    /// Processes that are members.
    pub members: usize,
    /// Keys whose packets go to them.
    pub keys: usize,
}

#[derive(Debug)]
struct Served {
    /// No other one ever has had this number.
    member: u64,
    stream: Stream,
    user: u32,
    holding: Holding,
    /// The number of its question.
    asked: u32,
    /// The kernel's sockets that have the ports of its keys.
    twins: HashMap<Key, OwnedFd>,
}

/// The abstract name by which members look for the owner of the interface with this number.
#[must_use]
pub fn name_of(interface: u32) -> Vec<u8> {
    format!("adverb-xdp.{interface}").into_bytes()
}

impl Owner {
    /// Serves an interface under an abstract name; each user gets `queues_each` of its queues, or what is left of them,
    /// and 16,384 keys, or as many as an eighth of the descriptors that this process may have, for each takes one.
    ///
    /// # Errors
    ///
    /// `AddrInUse` if the name is taken; no descriptors left.
    pub fn new(interface: Interface, name: &[u8], queues_each: u32) -> io::Result<Self> {
        let listener = Listener::bind(name)?;
        let epoll = Epoll::new()?;
        epoll.add(&listener, LISTENER, Interest::Readable)?;
        let namespace = netns::cookie_of(std::net::UdpSocket::bind("0.0.0.0:0")?)?;
        let inspectors = Inspectors::new(Place { interface: interface.index(), namespace })?;
        epoll.add(&inspectors, VERDICTS, Interest::Readable)?;
        Ok(Self {
            interface,
            listener,
            epoll,
            events: Events::with_capacity(EVENTS),
            groups: HashMap::new(),
            members: HashMap::new(),
            queues_each,
            keys_each: KEYS_EACH.min(process::descriptors_max() / DESCRIPTORS_SHARE),
            inspectors,
            taken_in: 0,
            paused: None,
            since: Instant::now(),
            disbanded: None,
            refusal: None,
        })
    }

    /// How many members there are.
    #[must_use]
    pub fn members(&self) -> usize {
        self.members.len()
    }

    /// The interface.
    #[must_use]
    pub const fn interface(&self) -> &Interface {
        &self.interface
    }

    /// How many members and keys each user has, by its number.
    #[must_use]
    pub fn by_user(&self) -> BTreeMap<u32, Count> {
        let mut counts = BTreeMap::new();
        for Served { user, twins, .. } in self.members.values() {
            let count: &mut Count = counts.entry(*user).or_default();
            count.members += 1;
            count.keys += twins.len();
        }
        counts
    }

    /// The first user that could not have a group although there were queues, with the reason: too little memory that may be
    /// locked, as a rule.
    #[must_use]
    pub fn refusal(&self) -> Option<&str> {
        self.refusal.as_deref()
    }

    /// Waits until there is something to do, or for `timeout`, and does it; ten times a second is enough for members that
    /// wait for packets while another, which reads none, has all frames. `admits` says which processes may be members;
    /// those that cannot be seen from this process's namespace may not.
    ///
    /// # Errors
    ///
    /// Those of `epoll_wait(2)`.
    pub fn step(
        &mut self,
        timeout: Option<Duration>,
        admits: impl Fn(Credentials) -> bool,
    ) -> io::Result<()> {
        self.resume();
        let paused = self.paused.map(|_| AGAIN);
        let behind = self.groups.values().filter_map(Group::look_again);
        let timeout = behind.chain(paused).chain(timeout).min();
        self.epoll.wait(&mut self.events, timeout)?;
        let ready: Vec<_> = self.events.iter().map(|event| event.token).collect();
        for token in ready {
            match u32::try_from(token) {
                Ok(place) => self.serve(place),
                Err(_) if token == VERDICTS => self.decide(),
                Err(_) => self.take_in(&admits),
            }
        }
        self.groups.values_mut().for_each(|group| self.interface.tend(group));
        let is_busy = |group: &Group| !group.is_empty();
        self.inspectors.close_all_but(|user| self.groups.get(&user).is_some_and(is_busy));
        Ok(())
    }

    /// Takes in a process that has connected.
    fn take_in(&mut self, admits: impl Fn(Credentials) -> bool) {
        let stream = match self.listener.accept() {
            Ok(stream) => stream,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            Err(_) => return self.pause(),
        };
        let result = match stream.peer() {
            Ok(peer) if peer.pid != 0 && admits(peer) => {
                self.admit(&stream, peer.uid).map(|admitted| (admitted, peer))
            }
            Ok(_) => Err(io::ErrorKind::PermissionDenied.into()),
            Err(error) => Err(error),
        };
        match result {
            Ok(((place, tie), Credentials { pid: process, uid: user })) => {
                let holding = Holding { process, tie };
                let watched = self.epoll.add(&stream, place.into(), Interest::Readable);
                self.taken_in += 1;
                let member = self.taken_in;
                let (asked, twins) = (0, HashMap::new());
                let served = Served { member, stream, user, holding, asked, twins };
                self.members.insert(place, served);
                if watched.is_err() {
                    self.end(place);
                }
            }
            Err(error) => {
                // One that does not wait for the answer is gone.
                let _ = grant::refuse(&stream, &error);
                self.inspectors.turn_away(stream);
                if self.inspectors.is_gate_behind() {
                    self.pause();
                }
            }
        }
    }

    /// Takes no connections for a while: there are no descriptors left, or those that were turned away have not gone.
    fn pause(&mut self) {
        let _ = self.epoll.remove(&self.listener);
        self.paused = Some(Instant::now() + AGAIN);
    }

    fn resume(&mut self) {
        let due = self.paused.is_some_and(|until| until <= Instant::now());
        if due && !self.inspectors.is_gate_behind() {
            let added = self.epoll.add(&self.listener, LISTENER, Interest::Readable);
            self.paused = self.paused.filter(|_| added.is_err());
        }
    }

    fn admit(&mut self, stream: &Stream, user: u32) -> io::Result<(u32, KeptFd)> {
        if self.groups.get(&user).map_or(0, Group::len) >= MEMBERS_EACH {
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        let mut group = match self.groups.remove(&user) {
            Some(group) => group,
            None => self.group(user)?,
        };
        // A member has all queues that its group has when it joins.
        if group.is_short() && group.is_empty() {
            self.interface.extend(&mut group, self.queues_each);
            let since = self.disbanded.unwrap_or(self.since);
            if group.is_short() && since.elapsed() < LET_GO {
                self.groups.insert(user, group);
                return Err(io::ErrorKind::ResourceBusy.into());
            }
        }
        let inspected = self.inspectors.open(user);
        let joined = inspected.and_then(|()| self.interface.join(&mut group));
        let greeted = joined.and_then(|member| {
            let place = member.place();
            let greeted = greet(stream, &group, member, self.interface.mode());
            greeted.inspect_err(|_| self.interface.leave(&mut group, place)).map(|tie| (place, tie))
        });
        self.groups.insert(user, group);
        greeted
    }

    /// A new group for a user. One without members stays for its user's next program, which would find its queues busy for a
    /// moment, until another user needs them, or the memory that is locked for it.
    fn group(&mut self, user: u32) -> io::Result<Group> {
        let made = self.interface.group(self.queues_each, true, Duration::ZERO);
        let Err(error) = made else { return made };
        let is_quota = error.kind() == io::ErrorKind::QuotaExceeded;
        if is_quota || error.kind() == io::ErrorKind::ResourceBusy {
            for (_, group) in self.groups.extract_if(|_, group| group.is_empty()) {
                self.interface.disband(group);
                self.disbanded = Some(Instant::now());
            }
        }
        // The kernel takes a moment to let go of what has been locked.
        if is_quota && self.disbanded.is_some_and(|then| then.elapsed() < LET_GO) {
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        if error.kind() != io::ErrorKind::ResourceBusy {
            self.refusal.get_or_insert_with(|| format!("user {user}: {error}"));
        }
        Err(error)
    }

    /// Answers a member, or ends it.
    fn serve(&mut self, place: u32) {
        let Some(served) = self.members.get_mut(&place) else { return };
        let (member, user) = (served.member, served.user);
        let (mut bytes, mut fds) = ([0; Question::LEN + 1], Vec::new());
        let question = match served.stream.recv_all(&mut bytes, &mut fds) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            Err(_) | Ok(0) => None,
            Ok(len) => Question::parse(bytes.get(..len).unwrap_or_default()),
        };
        let Some(Question { number, until_ns, request }) = question else {
            self.inspectors.close(user, fds);
            return self.end(place);
        };
        served.asked = number;
        let is_late = until_ns < clock::now_ns();
        if is_late && !matches!(request, Request::Release(_)) {
            self.inspectors.close(user, fds);
            return self.answer(place, &Err(io::ErrorKind::TimedOut.into()));
        }
        // What else it asks for is read after the answer.
        let _ = self.epoll.remove(&served.stream);
        match request {
            Request::Claim(key, gate) => {
                self.inspectors.inspect(Claim { user, place, member, key, gate, until_ns }, fds);
            }
            Request::Release(key) => {
                fds.extend(self.release(place, &key));
                let claim = Claim { user, place, member, key, gate: None, until_ns };
                self.inspectors.let_go(claim, fds);
            }
            Request::Repair(key, on) => {
                let twin = match on {
                    true => {
                        let twins = self.members.get(&place).map(|member| &member.twins);
                        let twin = twins.and_then(|twins| twins.get(&key));
                        twin.and_then(|twin| twin.try_clone().ok())
                    }
                    // From now on the kernel has its packets, too.
                    false => self.release(place, &key),
                };
                let claim = Claim { user, place, member, key, gate: None, until_ns };
                self.inspectors.repair(claim, twin, on);
                self.inspectors.close(user, fds);
            }
        }
    }

    /// Answers members whose sockets have been looked at.
    fn decide(&mut self) {
        self.inspectors.silence();
        while let Some(Verdict { claim, ruling }) = self.inspectors.verdict() {
            let Claim { user, place, member, key, gate, until_ns } = claim;
            let keys = self.keys_of(user);
            let all: usize = self.members.values().map(|member| member.twins.len()).sum();
            let Some(served) =
                self.members.get_mut(&place).filter(|served| served.member == member)
            else {
                self.inspectors.close(user, ruling.into_twin().into_iter().collect());
                continue;
            };
            let has_room =
                may_have_more(keys, all, self.keys_each) || served.twins.contains_key(&key);
            let (result, to_close) = match ruling {
                Ruling::Done(result) => (result, None),
                Ruling::Wrong => (Err(io::ErrorKind::PermissionDenied.into()), None),
                Ruling::Right(twin) if until_ns < clock::now_ns() => {
                    (Err(io::ErrorKind::TimedOut.into()), Some(twin))
                }
                Ruling::Right(twin) if !has_room => {
                    (Err(io::ErrorKind::ResourceBusy.into()), Some(twin))
                }
                Ruling::Right(twin) => match self.interface.claim_by(key, place, gate) {
                    Ok(()) => (Ok(()), served.twins.insert(key, twin)),
                    Err(error) => (Err(error), Some(twin)),
                },
            };
            let watched = self.epoll.add(&served.stream, place.into(), Interest::Readable);
            self.inspectors.close(user, to_close.into_iter().collect());
            self.answer(place, &result);
            if watched.is_err() {
                self.end(place);
            }
        }
    }

    fn keys_of(&self, user: u32) -> usize {
        let members = self.members.values().filter(|member| member.user == user);
        members.map(|member| member.twins.len()).sum()
    }

    /// Gives a member's packets back to the kernel; what has the port may be closed then.
    fn release(&mut self, place: u32, key: &Key) -> Option<OwnedFd> {
        self.interface.release(key, place);
        self.members.get_mut(&place)?.twins.remove(key)
    }

    fn answer(&mut self, place: u32, result: &io::Result<()>) {
        let Some(Served { stream, asked, .. }) = self.members.get(&place) else { return };
        if grant::answer(stream, *asked, result).is_err() {
            self.end(place);
        }
    }

    fn end(&mut self, place: u32) {
        let Some(served) = self.members.remove(&place) else { return };
        let Served { stream, user, holding, twins, .. } = served;
        let _ = self.epoll.remove(stream.as_fd());
        if let Some(mut group) = self.groups.remove(&user) {
            self.interface.dismiss(&mut group, place, Some(holding));
            self.groups.insert(user, group);
        }
        self.inspectors.reset(user, twins.into_values().collect());
        self.inspectors.hang_up(user, stream);
    }
}

/// Sends a member what it needs. What shows that it has all of that no more.
fn greet(stream: &Stream, group: &Group, member: Member, mode: XdpMode) -> io::Result<KeptFd> {
    let (shows, tie) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    let shows = KeptFd::new(shows)?;
    let files = group.files().ok_or(io::ErrorKind::InvalidInput)?;
    let sockets = u32::try_from(member.sockets.len()).unwrap_or(u32::MAX);
    let greeting = Greeting { place: member.place(), shape: group.shape(), mode, sockets };
    let fds = [files.frames.as_fd(), files.record.as_fd(), member.gates.as_fd(), tie.as_fd()];
    stream.send(&greeting.emit(), &fds)?;
    grant::send_sockets(stream, &member.sockets)?;
    Ok(shows)
}

/// Whether a user who has `keys` of all may have one more: no more than `each`, and no more than are left for others, so that
/// a next user finds half of them.
fn may_have_more(keys: usize, all: usize, each: usize) -> bool {
    keys < each && keys < usize::try_from(KEYS_MAX).unwrap_or(0).saturating_sub(all)
}

/// No place has these numbers.
const LISTENER: u64 = u64::MAX;
const VERDICTS: u64 = u64::MAX - 1;
const EVENTS: usize = 16;
/// How long the kernel may take to let go of queues and locked memory on a machine with much to do.
const LET_GO: Duration = Duration::from_secs(2);
/// How long what could not be done is left.
const AGAIN: Duration = Duration::from_millis(20);
/// Members of one user, with those that have left and whose frames have not come back.
const MEMBERS_EACH: usize = 32;
/// Keys of one user, and the part of this process's descriptors that their sockets may be.
const KEYS_EACH: usize = 1 << 14;
const DESCRIPTORS_SHARE: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: however many keys the users before want, the next one gets some.
    #[test]
    fn a_next_user_finds_keys() {
        let (mut all, mut least) = (0, usize::MAX);
        for _ in 0..8 {
            let mut keys = 0;
            while may_have_more(keys, all + keys, KEYS_EACH) {
                keys += 1;
            }
            all += keys;
            least = least.min(keys);
        }
        assert!(least >= 256 && all <= 65_536, "{least} of {all}");
    }
}
