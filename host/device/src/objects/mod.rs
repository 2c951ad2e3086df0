//! Objects that programs create: queue pairs, completion queues, shared receive queues, channels, events.

pub(crate) mod ah;
pub(crate) mod channel;
pub(crate) mod completion;
pub(crate) mod cq;
pub(crate) mod events;
pub(crate) mod host;
pub(crate) mod inbox;
pub(crate) mod limits;
pub(crate) mod notice;
pub(crate) mod notify;
pub(crate) mod progress;
pub(crate) mod qp;
pub(crate) mod srq;
pub(crate) mod standby;
pub(crate) mod table;
pub(crate) mod work;
pub(crate) mod xrc;
pub(crate) mod xrc_home;
pub(crate) mod xrc_proxy;

use crate::sync;
