//! Filtered waits on an instance: the program looks at packets before it is told of them (`filters.rs`).

#![expect(clippy::as_conversions, reason = "the kernel's event masks have two widths")]

use std::ffi::c_int;

use super::Epoll;
use super::item::{Item, Target};
use crate::base::raw::Errno;
use crate::socket::arena;
use crate::socket::loans::Keep;
use crate::socket::table::SocketRef;
use crate::socket::waits::{Call, Waiting};
use crate::wait::filters;

/// A registration of a socket that has a receive callback.
#[derive(Debug)]
struct Filtered {
    socket: SocketRef,
    fd: c_int,
    via: c_int,
    events: u32,
    data: u64,
}

impl Epoll {
    /// `epoll_pwait2(2)`: waits for at most `limit_ns`, and reports what has happened.
    pub(crate) fn wait(
        &self,
        epfd: c_int,
        events: &mut [libc::epoll_event],
        limit_ns: Option<u64>,
        mask: Option<&libc::sigset_t>,
    ) -> Result<usize, Errno> {
        let mut waiting = Waiting::begin(arena::waits(), Call::Epoll);
        let answer = match filters::is_any() {
            false => self.wait_unfiltered(epfd, events, limit_ns, mask, &mut waiting),
            true => filters::until_kept(limit_ns, |left_ns| {
                let count = self.wait_unfiltered(epfd, events, left_ns, mask, &mut waiting)?;
                Ok((count, self.filter(epfd, events, count)))
            }),
        };
        waiting.end(&answer);
        answer
    }

    /// Of `count` events those stay that the program is to be told of. Returns how many. Registrations that the program
    /// has given the same mark are not told apart, and stay.
    fn filter(&self, epfd: c_int, events: &mut [libc::epoll_event], count: usize) -> usize {
        let filtered = self.filtered();
        let mut kept = 0;
        for read in 0..count {
            let Some(mut event) = events.get(read).copied() else { break };
            let (mask, data) = (event.events, event.u64);
            let mut known = filtered.iter().filter(|known| known.data == data);
            if let (Some(known), None) = (known.next(), known.next())
                && mask & READING != 0
                && !filters::has_news(&known.socket, known.via)
            {
                event.events = mask & !READING;
                if event.events == 0 {
                    self.rearm(epfd, known);
                    continue;
                }
            }
            if let Some(place) = events.get_mut(kept) {
                *place = event;
                kept += 1;
            }
        }
        kept
    }

    /// A registration that is for one event has had none yet.
    fn rearm(&self, epfd: c_int, known: &Filtered) {
        if known.events & libc::EPOLLONESHOT as u32 != 0 {
            let event = libc::epoll_event { events: known.events, u64: known.data };
            let _ = self.control(epfd, libc::EPOLL_CTL_MOD, known.fd, event);
        }
    }

    fn filtered(&self) -> Vec<Filtered> {
        let mut sockets = Vec::new();
        filters::each(|socket| sockets.push(socket));
        self.with(|state| {
            let known = |item: &Item| match &item.target {
                Target::Socket(socket) | Target::Datagram(socket)
                    if sockets.contains(&socket.key()) =>
                {
                    let (socket, fd, via) = (socket.clone(), item.fd, item.via);
                    Some(Filtered { socket, fd, via, events: item.events, data: item.data })
                }
                Target::Socket(_) | Target::Datagram(_) | Target::Inner(_) => None,
            };
            state.items.iter().flatten().filter_map(known).collect()
        })
    }
}

/// Events that something to be received is.
const READING: u32 = (libc::EPOLLIN | libc::EPOLLRDNORM) as u32;
