//! Registrations of an epoll instance: items come, change and go.

#![expect(clippy::as_conversions, reason = "the kernel's event masks have two widths")]

use std::ffi::c_int;
use std::sync::atomic::Ordering;

use super::item::{Item, Target};
use super::{Epoll, MARK, State, kernel_control, start_polling};
use crate::base::raw::{Answer, Errno};
use crate::socket::changes::{self, Since};
use crate::socket::policy;
use crate::socket::state::{Kind, Socket};
use crate::socket::table::{self, SocketRef};
use crate::transport::{datagram, xdp};
use crate::wait::{epoll, filters};

impl Epoll {
    /// `epoll_ctl(2)` for something that we know.
    pub(crate) fn control(
        &self,
        epfd: c_int,
        op: c_int,
        fd: c_int,
        event: libc::epoll_event,
    ) -> Answer {
        let (events, data) = (event.events, event.u64);
        let is_ours = |socket: &SocketRef| match socket.kind() {
            Kind::Datagram => {
                op != libc::EPOLL_CTL_ADD
                    || datagram::may_use_mailbox(socket)
                    || filters::has(socket)
            }
            Kind::Fresh | Kind::Listener | Kind::Connecting | Kind::Stream => true,
        };
        let Some(socket) = table::socket(fd).filter(is_ours) else {
            return self.control_inner(epfd, op, fd, events, data);
        };
        let at = self.with(|state| state.find(fd, socket.socket()));
        match (op, at) {
            (libc::EPOLL_CTL_ADD, Some((at, true))) => {
                self.revive(at, events, data);
                self.stir(at, epfd);
                Ok(0)
            }
            (libc::EPOLL_CTL_MOD | libc::EPOLL_CTL_DEL, Some((_, true))) => {
                Err(Errno(libc::ENOENT))
            }
            (libc::EPOLL_CTL_ADD, _) => {
                kernel_control(epfd, op, fd, events, data)?;
                xdp::get(&socket, fd); // Before it is watched.
                socket.waiters.watchers.fetch_add(1, Ordering::SeqCst);
                let is_datagram = socket.kind() == Kind::Datagram;
                let target = if is_datagram { Target::Datagram } else { Target::Socket };
                let mut item = Item::new(fd, target(socket), events, data);
                // A thread may sleep on this instance already, and be woken by the kernel alone.
                item.meet(true);
                item.is_polled |= item.is_seen;
                let at = self.insert(item);
                self.stir(at, epfd);
                Ok(0)
            }
            (libc::EPOLL_CTL_MOD, Some((at, false))) => {
                let is_marked = self.with(|state| {
                    let Some(item) = state.items.get_mut(at).and_then(Option::as_mut) else {
                        return Ok(false);
                    };
                    if item.is_exclusive() || events & libc::EPOLLEXCLUSIVE as u32 != 0 {
                        return Err(Errno(libc::EINVAL)); // As the kernel, which is not asked of all.
                    }
                    item.change(events, data);
                    start_polling(&mut state.polled, at, item);
                    if item.is_seen {
                        item.meet(true);
                        state.stale.push(at);
                    }
                    Ok(item.is_marked)
                });
                if is_marked? {
                    self.stir(at, epfd);
                    return Ok(0);
                }
                kernel_control(epfd, op, fd, events, data)
            }
            (libc::EPOLL_CTL_DEL, Some((at, false))) => {
                if self.bury(at, epfd) {
                    return Ok(0);
                }
                self.remove(at);
                kernel_control(epfd, op, fd, events, data)
            }
            _ => kernel_control(epfd, op, fd, events, data),
        }
    }

    /// An item has changed while a thread may sleep on this instance that has not looked at it. Then the
    /// kernel says again what there is of it: a connection that can be written to, at least.
    pub(super) fn stir(&self, at: usize, epfd: c_int) {
        if !self.with(|state| state.asleep > 0 || state.is_watched) {
            return;
        }
        self.sync(epfd);
        self.with(|state| {
            let item = state.items.get(at).and_then(Option::as_ref);
            let is_known =
                |item: &&Item| item.is_marked && item.ghost_of.is_none() && !item.is_orphan();
            if let Some(item) = item.filter(is_known) {
                let mark = MARK | at as u64;
                let _ = kernel_control(epfd, libc::EPOLL_CTL_MOD, item.fd, item.bells(), mark);
            }
        });
    }

    /// A connection with rings is removed, and stays where it is: programs that remove a connection
    /// after each message add it again before the next. Returns false if it is no such connection.
    fn bury(&self, at: usize, epfd: c_int) -> bool {
        self.with(|state| {
            let Some(item) = state.items.get_mut(at).and_then(Option::as_mut) else { return false };
            item.ghost_of = match item.target {
                Target::Socket(_) if item.is_marked => Some(epfd),
                Target::Socket(_) | Target::Datagram(_) | Target::Inner(_) => None,
            };
            item.ghost_of.is_some()
        })
    }

    /// It is added again.
    fn revive(&self, at: usize, events: u32, data: u64) {
        self.with(|state| {
            if let Some(item) = state.items.get_mut(at).and_then(Option::as_mut) {
                item.ghost_of = None;
                item.change(events, data);
                start_polling(&mut state.polled, at, item);
            }
        });
    }

    /// A descriptor that is about to be closed stands for a socket that others have as well: they are
    /// what it is looked at by from now on, and if it has been removed here, it is now.
    pub(super) fn lay(&self, fd: c_int, socket: &Socket) {
        let places: Vec<usize> = self.with(|state| state.items_of(socket.index()).collect());
        if places.is_empty() {
            return;
        }
        let epfd = table::find(|fd| epoll::is_of(fd, self));
        self.with(|state| {
            let State { items, polled, marks, .. } = state;
            for at in places {
                let Some(item) = items.get_mut(at).and_then(Option::as_mut) else { continue };
                if item.via == fd {
                    item.via = table::find(|fd| table::is_socket(fd, socket)).unwrap_or(-1);
                }
                // The last moment to tell the kernel, even if rings come only later.
                let is_late = item.fd == fd && item.ghost_of.is_none() && !item.is_marked;
                let may_ring = policy::may_ring(socket) && !item.is_kernels();
                if is_late
                    && (socket.segment().is_some() || may_ring)
                    && matches!(item.target, Target::Socket(_))
                    && let Some(epfd) = epfd
                {
                    *marks += 1;
                    self.mark(at, item, epfd);
                    start_polling(polled, at, item);
                }
            }
        });
        let Some((at, true)) = self.with(|state| state.find(fd, socket)) else { return };
        let epfd = self.with(|state| state.items.get(at)?.as_ref()?.ghost_of);
        if let Some(epfd) = epfd.filter(|epfd| epoll::is_of(*epfd, self)) {
            let _ = kernel_control(epfd, libc::EPOLL_CTL_DEL, fd, 0, 0);
        }
        self.remove(at);
    }

    /// The same, where the other side is an instance or something that is none of our business.
    fn control_inner(&self, epfd: c_int, op: c_int, fd: c_int, events: u32, data: u64) -> Answer {
        kernel_control(epfd, op, fd, events, data)?;
        let Some(inner) = epoll::of(fd) else { return Ok(0) };
        let at = self.with(|state| {
            state.inners.iter().copied().find(|at| {
                let item = state.items.get(*at).and_then(Option::as_ref);
                let target = item.filter(|item| item.fd == fd).map(|item| &item.target);
                matches!(target, Some(Target::Inner(known)) if std::ptr::eq(&**known, &*inner))
            })
        });
        match (op, at) {
            (libc::EPOLL_CTL_ADD, _) => {
                inner.is_inner.store(true, Ordering::Release);
                self.insert(Item::new(fd, Target::Inner(inner), events, data));
            }
            (libc::EPOLL_CTL_MOD, Some(at)) => self.with(|state| {
                if let Some(item) = state.items.get_mut(at).and_then(Option::as_mut) {
                    item.change(events, data);
                }
            }),
            (libc::EPOLL_CTL_DEL, Some(at)) => self.remove(at),
            _ => {}
        }
        Ok(0)
    }

    /// Returns where it is.
    fn insert(&self, item: Item) -> usize {
        let at = self.with(|state| {
            let at = state.free.pop().unwrap_or(state.items.len());
            state.stale.push(at);
            if let Some(place) = item.place() {
                state.places.insert(place, at);
            }
            match item.target {
                Target::Socket(_) => {}
                Target::Datagram(_) => state.datagrams.push(at),
                Target::Inner(_) => state.inners.push(at),
            }
            if item.is_polled {
                state.polled.push(at);
            }
            match state.items.get_mut(at) {
                Some(place) => *place = Some(item),
                None => state.items.push(Some(item)),
            }
            at
        });
        self.count.fetch_add(1, Ordering::AcqRel);
        at
    }

    pub(super) fn remove(&self, at: usize) {
        let gone = self.with(|state| {
            let item = state.items.get_mut(at).and_then(Option::take)?;
            let leave = |list: &mut Vec<usize>| list.retain(|known| *known != at);
            if item.is_polled {
                leave(&mut state.polled);
            }
            if item.is_parked {
                leave(&mut state.parked);
            }
            match item.target {
                Target::Socket(_) => {}
                Target::Datagram(_) => leave(&mut state.datagrams),
                Target::Inner(_) => leave(&mut state.inners),
            }
            if let Some(place) = item.place() {
                state.places.remove(&place);
            }
            state.free.push(at);
            state.marks = state.marks.saturating_sub(usize::from(item.is_marked));
            Some(item)
        });
        if let Some(mut item) = gone {
            self.count.fetch_sub(1, Ordering::AcqRel);
            item.part();
        }
    }

    /// Forgets a socket whose last descriptor is being closed; `last` as long as it is open.
    pub(super) fn forget(&self, last: Option<c_int>, socket: &Socket) {
        // The owner of an interface may have a copy for longer, of which the kernel would tell.
        let is_copied = xdp::of(socket).is_some();
        while let Some(at) = self.with(|state| state.items_of(socket.index()).next()) {
            let of = |state: &mut State| state.items.get(at)?.as_ref().map(|item| item.fd);
            // What was registered by another descriptor cannot be removed any more: its number may be another file's.
            if is_copied
                && let Some(fd) = self.with(of).filter(|fd| last == Some(*fd))
                && let Some(epfd) = table::find(|fd| epoll::is_of(fd, self))
            {
                let _ = kernel_control(epfd, libc::EPOLL_CTL_DEL, fd, 0, 0);
            }
            self.remove(at);
        }
    }

    /// Forgets an instance whose last descriptor is being closed.
    pub(super) fn forget_inner(&self, inner: &Self) {
        let is_it = |item: &Item| matches!(&item.target, Target::Inner(known) if std::ptr::eq(&**known, inner));
        let next = |state: &mut State| {
            let mut inners = state.inners.iter().copied();
            inners.find(|at| state.items.get(*at).and_then(Option::as_ref).is_some_and(is_it))
        };
        while let Some(at) = self.with(next) {
            self.remove(at);
        }
    }

    /// Registers connections that have got rings under our mark: those that have changed since the last
    /// time.
    pub(super) fn sync(&self, epfd: c_int) {
        let mut ghosts = Vec::new();
        self.with(|state| {
            let mut stale = std::mem::take(&mut state.stale);
            match changes::since(state.changes, |socket| stale.extend(state.items_of(socket))) {
                Since::Named(next) => state.changes = next,
                Since::Everything(next) => {
                    state.changes = next;
                    stale.extend(0..state.items.len());
                }
            }
            stale.extend_from_slice(&state.inners);
            for at in stale.drain(..) {
                if self.sync_item(state, at, epfd) {
                    ghosts.push(at);
                }
            }
            state.stale = stale;
        });
        ghosts.into_iter().for_each(|at| self.remove(at));
    }

    /// Whether the kernel knows every registration as the program wants it, as soon as connections that had
    /// rings are told to it.
    pub(crate) fn is_kernels_alone(&self, epfd: c_int) -> bool {
        self.sync(epfd);
        self.with(|state| state.marks == 0 && state.kept.is_empty() && state.inners.is_empty())
    }

    /// From now on its sleepers are not notified: the kernel forgets the doorbell, too.
    pub(crate) fn stop_notifications(&self) {
        self.with(|state| state.doorbell.give_back());
    }

    /// From now on the kernel knows an item under our mark. It says again what there is.
    fn mark(&self, at: usize, item: &mut Item, epfd: c_int) {
        (item.is_marked, item.notified) = (true, 0);
        self.has_marked.store(true, Ordering::SeqCst);
        let mark = MARK | at as u64;
        let _ = kernel_control(epfd, libc::EPOLL_CTL_MOD, item.fd, item.bells(), mark);
    }

    /// Returns whether the item has been removed, and is not needed any longer.
    fn sync_item(&self, state: &mut State, at: usize, epfd: c_int) -> bool {
        let State { items, polled, asleep, marks, .. } = state;
        let Some(item) = items.get_mut(at).and_then(Option::as_mut) else { return false };
        let wanted = match &item.target {
            Target::Datagram(_) => {
                item.meet(*asleep > 0);
                start_polling(polled, at, item);
                return false;
            }
            Target::Socket(socket) => socket.segment().is_some(),
            Target::Inner(_) if item.is_orphan() => return false,
            Target::Inner(inner) => {
                inner.sync(item.fd);
                inner.has_marks()
            }
        };
        if wanted == item.is_marked {
            if wanted && item.is_orphan() {
                // What was marked before it had rings is looked at from now on.
                start_polling(polled, at, item);
            }
            return false;
        }
        if item.is_orphan() && item.ghost_of.is_none() {
            // It stays under the mark, or comes under it, and is looked at, whatever the kernel says.
            *marks += usize::from(wanted);
            item.is_marked = true;
            start_polling(polled, at, item);
            return false;
        }
        item.is_marked = wanted;
        let (op, fd) = (libc::EPOLL_CTL_MOD, item.fd);
        *marks = if wanted { *marks + 1 } else { marks.saturating_sub(1) };
        if item.ghost_of.is_some() {
            let _ = kernel_control(epfd, libc::EPOLL_CTL_DEL, fd, 0, 0);
            return true;
        }
        if wanted {
            self.mark(at, item, epfd);
            start_polling(polled, at, item);
        } else {
            // A connection that has been put in the place of one that had ended is new to the kernel.
            if kernel_control(epfd, op, fd, item.events, item.data) == Err(Errno(libc::ENOENT)) {
                let _ = kernel_control(epfd, libc::EPOLL_CTL_ADD, fd, item.events, item.data);
            }
            item.is_polled = false;
            polled.retain(|polled| *polled != at);
        }
        false
    }
}
