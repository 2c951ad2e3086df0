//! The two providers behind one API: the software device, and the system's libibverbs.
//!
//! Each handle of this crate holds one of these, and each call is one match of two arms: `Soft` is the
//! device crate's type, `Hw` that of `hw.rs`, which has the same calls. What a device of the second kind
//! cannot do is an error that says so.

/// Asks the provider that it is; or says what `else` says of one that is not ours.
macro_rules! either {
    ($one:expr, $soft:pat => $ask:expr, else $other:expr) => {
        match $one {
            Self::Soft($soft) => $ask,
            Self::Hw(_) => $other,
        }
    };
    ($one:expr, $it:ident => $ask:expr) => {
        match $one {
            Self::Soft($it) => $ask,
            Self::Hw($it) => $ask,
        }
    };
}

mod cq;
mod pd;
mod qp;

pub(crate) use self::cq::{CompChannel, Cq, Events, Wake};
pub(crate) use self::pd::{Ah, Domain, Region, XRC};
pub(crate) use self::qp::{Qp, Srq};

use crate::attr::{DeviceAttr, PortAttr};
use crate::cq::CqConfig;
use crate::error::{CreateError, Lacks};
use crate::hw;
use adverb_device::{
    Device, GidEntry, OpenError, PortConfig, PortCounters, QpCounters, Timestamps,
};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

/// A device that is open.
#[derive(Clone, Debug)]
pub(crate) enum Port {
    Soft(Arc<adverb_device::Port>),
    Hw(Arc<hw::Port>),
}

/// The devices of both providers: ours first.
pub(crate) fn devices() -> io::Result<Vec<Device>> {
    let mut all = adverb_device::devices()?;
    all.extend(hw::devices());
    Ok(all)
}

impl Port {
    pub(crate) fn open_with(name: &str, config: &PortConfig) -> Result<Self, OpenError> {
        let (name, mut known) = match adverb_device::Port::open_with(name, config) {
            Ok(port) => return Ok(Self::Soft(port)),
            Err(OpenError::NotFound { name, known }) => (name, known),
            Err(error) => return Err(error),
        };
        if let Some(port) = hw::Port::open(&name)? {
            return Ok(Self::Hw(port));
        }
        known.extend(adverb_ibv::devices().into_iter().map(|found| found.name));
        Err(OpenError::NotFound { name, known })
    }

    pub(crate) fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Soft(one), Self::Soft(two)) => Arc::ptr_eq(one, two),
            (Self::Hw(one), Self::Hw(two)) => Arc::ptr_eq(one, two),
            (Self::Soft(_), Self::Hw(_)) | (Self::Hw(_), Self::Soft(_)) => false,
        }
    }

    pub(crate) fn device(&self) -> &Device {
        either!(self, port => port.device())
    }

    /// Its GID table, as of the last look.
    pub(crate) fn gids(&self) -> Vec<GidEntry> {
        match self {
            Self::Soft(port) => port.gids(),
            Self::Hw(port) => port.device().gids.clone(),
        }
    }

    /// The place that has the local address of a connection, now.
    pub(crate) fn entry_at(&self, local: SocketAddr) -> Option<GidEntry> {
        match self {
            Self::Soft(port) => port.entry_at(local),
            Self::Hw(port) => port.device().entry_at(local).copied(),
        }
    }

    /// The software device, or the error that another has nothing of the kind.
    pub(crate) fn soft(&self, what: &'static str) -> Result<&Arc<adverb_device::Port>, Lacks> {
        match self {
            Self::Soft(port) => Ok(port),
            Self::Hw(port) => Err(Lacks { device: port.device().name.clone(), what }),
        }
    }

    pub(crate) fn attr(&self) -> DeviceAttr {
        match self {
            Self::Soft(port) => DeviceAttr { node_guid: port.device().guid, ..DeviceAttr::SOFT },
            Self::Hw(port) => port.attr(),
        }
    }

    /// The device as it is now; `None` if its interface has gone.
    pub(crate) fn look(&self) -> io::Result<Option<Device>> {
        match self {
            Self::Soft(port) => port.look(),
            Self::Hw(port) => Ok(Some(port.look())),
        }
    }

    pub(crate) fn query_port(&self) -> PortAttr {
        match self {
            Self::Soft(port) => PortAttr::of(port.device(), port.look().ok().flatten().as_ref()),
            Self::Hw(port) => port.query_port(),
        }
    }

    pub(crate) fn counters(&self) -> PortCounters {
        either!(self, port => port.counters(), else PortCounters::default())
    }

    pub(crate) fn qp_counters(&self) -> QpCounters {
        either!(self, port => port.qp_counters(), else QpCounters::default())
    }

    /// Takes a step for a device that needs it.
    #[inline]
    pub(crate) fn drive(&self) {
        match self {
            Self::Soft(port) => {
                port.drive();
            }
            Self::Hw(_) => {}
        }
    }

    /// Takes in and answers all that has arrived, on a device that needs it.
    pub(crate) fn settle(&self) {
        match self {
            Self::Soft(port) => port.settle(),
            Self::Hw(_) => {}
        }
    }

    /// Starts to listen for what happens to the port.
    pub(crate) fn monitor(&self) -> io::Result<()> {
        either!(self, port => port.monitor(), else Ok(()))
    }

    pub(crate) fn create_event_queue(&self) -> io::Result<Events> {
        Ok(match self {
            Self::Soft(port) => Events::Soft(port.create_event_queue()?),
            Self::Hw(port) => Events::Hw(Arc::clone(port)),
        })
    }

    pub(crate) fn create_comp_channel(&self) -> io::Result<CompChannel> {
        Ok(match self {
            Self::Soft(port) => CompChannel::Soft(port.create_comp_channel()?),
            Self::Hw(port) => CompChannel::Hw(Arc::new(adverb_ibv::Channel::new(port.context())?)),
        })
    }

    pub(crate) fn new_domain(&self) -> Domain {
        match self {
            Self::Soft(port) => Domain::Soft(Arc::clone(port), port.new_domain()),
            Self::Hw(port) => Domain::Hw(Arc::new(hw::Domain::new(port))),
        }
    }

    /// Makes a completion queue. The caller has checked the limits, and that the channel is this
    /// port's.
    pub(crate) fn create_cq(
        &self,
        events: &Events,
        config: &CqConfig<'_>,
    ) -> Result<Cq, CreateError> {
        match self {
            Self::Soft(port) => Ok(Cq::Soft(port.create_cq(&adverb_device::CqConfig {
                capacity: config.cqe,
                context: config.context,
                channel: config.channel.and_then(|channel| channel.device().soft()).cloned(),
                events: events.soft().cloned(),
                timestamps: config.timestamps,
            }))),
            Self::Hw(port) => {
                if config.timestamps != Timestamps::None {
                    let device = port.device().name.clone();
                    return Err(Lacks { device, what: "timestamps of completions" }.into());
                }
                let channel = config.channel.and_then(|channel| channel.device().hw());
                let CqConfig { cqe, context, comp_vector, .. } = *config;
                let cq = hw::Cq::new(port, cqe, context, channel, comp_vector);
                let what = format_args!("a completion queue of {cqe} completions");
                let failed = |error| CreateError::System(port.explain(what, &error));
                Ok(Cq::Hw(Arc::new(cq.map_err(failed)?)))
            }
        }
    }
}
