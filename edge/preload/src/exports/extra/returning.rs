//! Loans that come back: to the ring, the mailbox or the memory that they are of.

use std::ffi::c_int;

use crate::base::raw::{Answer, Errno};
use crate::socket::loans::{self, Keep, Returned};
use crate::socket::state::Kind;
use crate::socket::table::SocketRef;
use crate::transport::{bell, datagram, xdp};

/// Takes one loan back. The room behind it is the sender's again, once all before it has come back.
pub(crate) fn give_back(socket: &SocketRef, fd: c_int, id: u64) -> Answer {
    let returned;
    if socket.kind() == Kind::Datagram {
        let mailbox = datagram::mapped(socket);
        let _held = mailbox.and_then(|mailbox| mailbox.hold_readers());
        returned = loans::strike(socket.key(), id);
        if let (Returned::UpTo { oldest, .. }, Some(mailbox)) = (&returned, mailbox) {
            mailbox.take_back_loans(*oldest);
        }
    } else {
        let segment = socket.mapped();
        let held = socket.receiving.hold();
        returned = loans::strike(socket.key(), id);
        if let (Returned::UpTo { oldest, .. }, Some(segment)) = (&returned, segment) {
            segment.incoming(socket.end()).take_back(*oldest);
            drop(held);
            bell::notify_of_room(socket, segment, fd);
            xdp::streams::taken(socket);
        }
    }
    match returned {
        Returned::Unknown => Err(Errno(libc::ENOENT)),
        Returned::Nothing | Returned::UpTo { .. } => Ok(0),
    }
}
