//! Parts of what is known of a socket, each of them one idea.
//!
//! They lie in memory that processes share, as the whole does (`state.rs`), and are atomics alone.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};

/// Defines parts of a socket. A new socket begins with zeros in them.
macro_rules! parts {
    ($(
        $(#[$about:meta])*
        $visible:vis struct $name:ident {
            $($(#[$what:meta])* $field:ident: $type:ty,)*
        }
    )+) => {$(
        $(#[$about])*
        #[derive(Debug)]
        #[repr(C)]
        $visible struct $name {
            $($(#[$what])* pub(crate) $field: $type,)*
        }

        impl $name {
            /// As a new socket has it.
            pub(super) fn reset(&self) {
                $(self.$field.store(Default::default(), Ordering::Relaxed);)*
            }
        }
    )+};
}

parts! {
    /// The socket among others, and among processes.
    pub(crate) struct Identity {
        /// Other programs that have it, or may have.
        strangers: AtomicU32,
        /// The process that made it or accepted it, and the descriptor's number there.
        owner: AtomicU32,
        owner_fd: AtomicU32,
    }

    /// What a socket is, how its bytes travel, and why.
    pub(super) struct State {
        kind: AtomicU8,
        route: AtomicU8,
        reason: AtomicU8,
        /// It accepted the connection, rather than make it.
        is_server: AtomicBool,
    }

    /// What the program, its rules and the kernel have said of a socket.
    pub(crate) struct Flags {
        /// Calls do not wait.
        is_nonblocking: AtomicBool,
        /// The program will not read any more.
        is_read_shut: AtomicBool,
        /// The program will not write any more.
        is_write_shut: AtomicBool,
        /// The kernel has said that the peer is gone.
        is_peer_gone: AtomicBool,
        /// Closing means a reset, by `SO_LINGER`.
        is_abortive: AtomicBool,
        /// The program wants what only the kernel has, and the rings go as soon as nothing in them is unread.
        wants_kernel: AtomicBool,
        /// `SO_RCVLOWAT` asks for more than a byte: only the kernel's own call knows how long to wait.
        has_least: AtomicBool,
        /// It came with its descriptor from another program, which may have it still.
        is_adopted: AtomicBool,
        /// The owner of an interface did not answer, and has or will have a copy of its descriptor.
        is_copied: AtomicBool,
        /// Frames have brought more before it was reset than its ring holds: the process that has carried it has the rest.
        has_rest: AtomicBool,
        /// A thread of this process has its locks, in the midst of a call, for longer than others wait.
        is_held_up: AtomicBool,
        /// What the program thinks `TCP_NODELAY` is.
        nodelay: AtomicBool,
        /// The transport that rules allow: `adverb_sockconf::Transport` as a number.
        allowed: AtomicU8,
        /// An error that the next call reports.
        pending_error: AtomicU8,
    }

    /// What waits for something to happen to a socket, besides `Waiters`.
    pub(crate) struct Waiting {
        /// When the kernel was last asked whether the peer is still there.
        looked_ns: AtomicU64,
        /// What both ends had read, and one more, when a call that waits for room last looked whether they stand still;
        /// since when that has been so, or the other end has been seen to say so; and how often it had said so then.
        still_at: AtomicU64,
        still_ns: AtomicU64,
        still_count: AtomicU32,
    }

    /// What has gone through a connection, and by which way.
    pub(crate) struct Traffic {
        /// How often there was no room for all that was to be sent.
        tx_full_count: AtomicU32,
        /// Receptions since something was last sent.
        rx_streak: AtomicU32,
        /// Bytes sent on rings since something was last received.
        streamed: AtomicU64,
        /// Sends through the kernel since the last look for an offer; for datagrams, receptions.
        kernel_count: AtomicU32,
        /// Receptions through the kernel of a connection whose other end may be in another namespace, and
        /// have rings; 0 if it is not to be expected.
        probe_count: AtomicU32,
        /// Bytes taken from the kernel before the rings were there.
        taken: AtomicU64,
        /// Bytes given to the kernel.
        given: AtomicU64,
    }

    /// How the two ends of a connection, or senders and a mailbox, find one another.
    pub(crate) struct Rendezvous {
        /// The port that a UDP socket is known to have; the one that a listener announces, and to which a connection's
        /// offer counts, made or expected; 0 if there is none.
        port: AtomicU32,
        /// Where a connection goes that this end has made: see `history.rs`.
        destination: AtomicU32,
        /// The rings' name.
        name_first: AtomicU64,
        name_second: AtomicU64,
        /// What else it takes to know its file there from others: for rings, the number of the socket for which
        /// they were made; for a mailbox, that of its network namespace. 0 if there has been none.
        key: AtomicU64,
        /// The size of the rings.
        ring_bytes: AtomicU64,
        /// The kernel's number for this socket, once it has rings.
        cookie: AtomicU64,
        /// Since when the peer is about to go back to the kernel; 0 if it is not.
        leaving_since_ns: AtomicU64,
    }

    /// What a UDP socket has besides.
    pub(crate) struct Datagrams {
        /// How often it has been connected.
        epoch: AtomicU32,
        /// What has become of its frames; see `xdp.rs`.
        frames: AtomicU8,
        /// It has a mailbox.
        has_inbox: AtomicBool,
        /// It is not to get one.
        is_kernel_only: AtomicBool,
        /// The kernel tells us of its datagrams to which group they were sent; the program knows nothing
        /// of that.
        shows_groups: AtomicBool,
        /// It has joined a group, now or before.
        has_joined: AtomicBool,
        /// It is one of IPv4, which has no addresses of IPv6, not even those that mean one of IPv4.
        is_v4: AtomicBool,
        /// What it sends to groups does not come back to this host.
        is_loop_off: AtomicBool,
        /// The kernel tells us of its datagrams how many it had dropped before; the program knows nothing of that.
        shows_drops: AtomicBool,
        /// By which interface it sends to groups, if the program has said so: an address, and an index
        /// above it.
        multicast_by: AtomicU64,
    }

    /// Options that a socket keeps by itself.
    pub(crate) struct Options {
        /// Time limits of receiving and sending, in nanoseconds; 0 is none.
        receive_limit_ns: AtomicU64,
        send_limit_ns: AtomicU64,
        /// Time stamps that the program wants of what it receives; see `stamps.rs`.
        stamps: AtomicU32,
    }

    /// The queue of completions that a socket belongs to; see `rings.rs`.
    pub(crate) struct Completions {
        /// Its ring, once it has one; and by what logic it is to have one, or 0.
        ring: AtomicU64,
        ring_logic: AtomicU64,
        /// What the program has said of it for completions, if it has.
        user_data: AtomicU64,
        has_user_data: AtomicBool,
        /// A call has found no room to send, and the program is to be told of some.
        wants_room: AtomicBool,
        /// The program has been told of an error of a UDP socket, which has not been taken yet.
        has_told_error: AtomicBool,
    }
}
