//! Transports other than reliable connections, and the ways from state to state, over the software
//! device.
//!
//! | file | is about |
//! |---|---|
//! | `matrix.rs` | every operation over every transport, against the engine's table |
//! | `datagram.rs` | addresses, network headers, Q_Keys, lengths |
//! | `echo.rs` | datagrams between processes, stopped and killed ones among them |
//! | `marks.rs` | traffic class, hop limit and flow label, on the wire and at the receiver |
//! | `multicast.rs` | groups, within a process and between several |
//! | `crowd.rs` | groups of several processes, over every path |
//! | `states.rs` | what each state does to posting and to work; modify, query, RESET, SQD, SQE |
//! | `strangers.rs` | packets that should not have been sent |
//! | `xrc.rs` | extended reliable connections and their domains |
//! | `shared_xrc.rs` | domains that several processes have open; `sharer.rs` is one of them |

#[path = "../verbs/alone.rs"]
mod alone;
mod crowd;
mod datagram;
mod echo;
mod marks;
mod matrix;
mod multicast;
#[path = "../verbs/pair.rs"]
mod pair;
#[path = "../verbs/path.rs"]
mod path;
mod shared_xrc;
mod sharer;
mod states;
#[path = "../verbs/stranger.rs"]
mod stranger;
mod strangers;
#[path = "../verbs/talker.rs"]
mod talker;
mod tap;
mod xrc;
