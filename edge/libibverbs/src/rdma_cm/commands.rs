//! Carries out commands on the connection manager of this process.
//!
//! Programs know identifiers and multicast groups by numbers, which are given in `table.rs`. An identifier belongs to
//! the channel that its events go to; commands about it have to be written there. Ending or moving it answers
//! how many of its events have been reported: librdmacm waits until the program has acknowledged as many.

use super::channel::Channel;
use super::table::{self, Known};
use super::translate;
use crate::cq::AGAIN;
use crate::errno::{Answer, Errno, INVALID};
use adverb_ibv::rdma_cm::{self, Command, Place, Query, id_answer, reported_answer};
use adverb_rdmacm::{Error, Event, EventKind, Id};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// What is in the caller's memory.
pub(super) type Memory<'a> = &'a dyn Fn(Place) -> Answer<Vec<u8>>;

/// Carries out one command that was written to `channel`, and answers it in at most `room` bytes.
pub(super) fn carry_out(
    channel: &Arc<Channel>,
    command: Command,
    room: usize,
    memory: Memory<'_>,
) -> Answer<Vec<u8>> {
    let of = |id| table::of_channel(id, channel);
    match command {
        Command::Accept { id, parameters: None, .. } => done(of(id)?.id.ready()),
        Command::Accept { id, uid, parameters: Some(parameters) } => {
            let known = of(id)?;
            let old = known.uid.swap(uid, Ordering::AcqRel); // Events follow at once.
            let accepted = known.id.accept(&translate::parameters(&parameters)?);
            if accepted.is_err() {
                known.uid.store(old, Ordering::Release);
            }
            done(accepted)
        }
        Command::Bind { id, address } => done(of(id)?.id.bind(address)),
        Command::Connect { id, parameters } => {
            done(of(id)?.id.connect(&translate::parameters(&parameters)?))
        }
        Command::CreateId { uid, port_space, qp_type } => {
            let (space, transport) = translate::kind(port_space, qp_type)?;
            let id = Id::new(&channel.queue, space, transport, 0)?;
            Ok(id_answer(table::insert(channel, uid, id)?.number))
        }
        Command::DestroyId { id } => {
            let known = of(id)?;
            end(&known);
            Ok(reported_answer(known.reported.load(Ordering::Acquire)))
        }
        Command::Disconnect { id } => done(of(id)?.id.disconnect()),
        Command::GetEvent => next_event(channel),
        Command::InitQpAttr { id, state } => translate::qp_attr(&of(id)?.id, state),
        Command::JoinMulticast { id, uid, address, .. } => {
            let known = of(id)?;
            let join = |user| Ok(known.id.join(address, user)?);
            table::insert_group(&known, uid, join).map(id_answer)
        }
        Command::LeaveMulticast { id } => {
            let group = table::group(id)?;
            of(group.of.number)?;
            table::remove_group(id, &group);
            group.membership.leave();
            Ok(reported_answer(group.reported.load(Ordering::Acquire)))
        }
        Command::Listen { id, backlog } => done(of(id)?.id.listen(backlog)),
        Command::MigrateId { id, fd } => migrate(channel, id, fd),
        Command::Notify { id, event } => notify(&*of(id)?, event),
        Command::Query { id, what } => Ok(query(&of(id)?.id, what, room)),
        Command::Reject { id, reason, private } => done(of(id)?.id.reject(reason, &private)),
        Command::ResolveAddress { id, source, destination, .. } => {
            done(of(id)?.id.resolve_addr(source, destination))
        }
        Command::ResolveRoute { id, .. } => done(of(id)?.id.resolve_route()),
        Command::SetOption { id, level, name, value } => {
            let known = of(id)?;
            translate::set_option(&known.id, level, name, &memory(value)?)?;
            Ok(Vec::new())
        }
        Command::WriteEvent { id, event, status, argument } => {
            let kind = [EventKind::User, EventKind::Internal];
            let kind = kind.into_iter().find(|kind| kind.number() == event).ok_or(INVALID)?;
            done(of(id)?.id.write_event(kind, status.cast_signed(), argument))
        }
    }
}

/// The end of a command without an answer.
fn done(result: Result<(), Error>) -> Answer<Vec<u8>> {
    result?;
    Ok(Vec::new())
}

fn end(known: &Known) {
    table::remove(known);
    known.id.destroy();
}

/// Ends all identifiers of a channel that is closed.
pub(super) fn end_all(channel: &Arc<Channel>) {
    table::all_of(channel).iter().for_each(|known| end(known));
}

/// Takes the next event; `EAGAIN` if there is none now.
fn next_event(channel: &Channel) -> Answer<Vec<u8>> {
    while let Some(event) = channel.queue.try_next() {
        if let Some(report) = report(&event)? {
            return Ok(report.emit());
        }
    }
    Err(AGAIN)
}

/// An event as the program gets it; `None` if it is about something that has ended meanwhile.
fn report(event: &Event) -> Answer<Option<rdma_cm::Event>> {
    let told = |number: u32, uid: u64, counts: &[&AtomicU32]| {
        for count in counts {
            count.fetch_add(1, Ordering::AcqRel);
        }
        rdma_cm::Event {
            uid,
            id: number,
            kind: rdma_cm::EventKind(event.kind.number()),
            status: event.status,
            param: translate::param(&event.param),
        }
    };
    let number = |user: u64| u32::try_from(user).unwrap_or(0);
    if let Some(membership) = &event.membership {
        let number = number(membership.user());
        let group = table::group(number).ok();
        return Ok(group.map(|group| {
            let of = &group.of;
            told(of.number, group.uid, &[&group.reported, &of.reported])
        }));
    }
    if let (EventKind::ConnectRequest, Some(listener)) = (event.kind, &event.listener) {
        let Ok(listener) = table::known(number(listener.user())) else {
            event.id.destroy();
            return Ok(None);
        };
        // Events of the new identifier are of no use before it is accepted: until then it has no name.
        let child = table::insert(&listener.channel(), 0, event.id.clone())?;
        let uid = listener.uid.load(Ordering::Acquire);
        return Ok(Some(told(child.number, uid, &[&listener.reported])));
    }
    let Ok(known) = table::known(number(event.id.user())) else {
        return Ok(None);
    };
    let uid = known.uid.load(Ordering::Acquire);
    Ok((uid != 0).then(|| told(known.number, uid, &[&known.reported])))
}

/// Moves an identifier from the channel `fd` to `channel`.
fn migrate(channel: &Arc<Channel>, id: u32, fd: i32) -> Answer<Vec<u8>> {
    let old = super::channel::find(fd).ok_or(INVALID)?;
    let known = table::of_channel(id, &old)?;
    known.id.migrate(&channel.queue)?;
    *known.channel() = Arc::clone(channel);
    Ok(reported_answer(known.reported.load(Ordering::Acquire)))
}

/// `IBV_EVENT_COMM_EST` is the only event that means something here.
fn notify(known: &Known, event: u32) -> Answer<Vec<u8>> {
    const COMM_EST: u32 = 4;
    match event {
        COMM_EST if known.id.notify_established()? => done(Ok(())),
        COMM_EST => Err(Errno(libc::EISCONN)),
        _ => Err(INVALID),
    }
}

fn query(id: &Id, what: Query, room: usize) -> Vec<u8> {
    match what {
        Query::Address => translate::address(id).emit(),
        Query::Gid => translate::gid(id).emit(),
        Query::Path => rdma_cm::path_answer(translate::path(id).as_ref(), room),
        Query::Route => translate::route(id).emit(),
    }
}
