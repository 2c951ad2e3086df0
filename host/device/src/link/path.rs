//! Path selection: UDP or shared memory, for the packets of a queue pair.

use std::io;

use crate::data_path::DataPath;
use crate::link::xdp::Demand;

/// Choice of paths for the queue pairs of a device: what `ADVERB_PATH` asks for, unless the program
/// does.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
#[non_exhaustive]
pub enum PathChoice {
    /// Memory where both sides can, else UDP, or frames of the interface where a daemon owns it and offers them. `auto`.
    #[default]
    Auto,
    /// As `Auto`, but between neighbours everything goes through the ring: this device shows no memory
    /// and looks at none. `ring`.
    Ring,
    /// Memory, or not at all. `shm`.
    SharedMemory,
    /// UDP always. `udp`.
    Udp,
    /// As `Udp`, but packets to and from other hosts go past the kernel's sockets, as frames of the interface. A daemon that
    /// owns it hands them out; without one, a single process can have an interface so, and it takes privilege. `xdp`.
    Xdp,
}

/// Configuration with which a device is opened.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub struct PortConfig {
    /// Which ways its queue pairs may take; `None`: what `ADVERB_PATH` says.
    pub path: Option<PathChoice>,
    /// It is not shared: to the others of this process it is what another process's would be.
    pub exclusive: bool,
}

impl PortConfig {
    adverb_sys::setters! {
        /// Sets which ways its queue pairs may take.
        fn path(path: PathChoice) => self.path = Some(path);
        /// Sets whether it is its opener's alone.
        fn exclusive(exclusive: bool) => self.exclusive = exclusive;
    }
}

/// How queue pairs that are connected from now on reach those of neighbours that agree to it: as
/// `ADVERB_PATH` asks, and over UDP where `ADVERB_PCAP` wants to see packets.
///
/// # Errors
///
/// `ADVERB_PATH` asks for something that does not exist.
pub fn neighbours_path() -> io::Result<DataPath> {
    let seen =
        std::env::var_os(crate::link::udp::capture::VARIABLE).is_some_and(|path| !path.is_empty());
    let memory = PathChoice::from_environment()?.allows_memory() && !seen;
    Ok(if memory { DataPath::SharedMemory } else { DataPath::Udp })
}

/// The environment variable.
pub(crate) const VARIABLE: &str = "ADVERB_PATH";

impl PathChoice {
    pub(crate) fn from_environment() -> io::Result<Self> {
        let value = std::env::var_os(VARIABLE).unwrap_or_default();
        Self::parse(&value.to_string_lossy())
    }

    fn parse(value: &str) -> io::Result<Self> {
        match value {
            "" | "auto" => Ok(Self::Auto),
            "ring" => Ok(Self::Ring),
            "shm" => Ok(Self::SharedMemory),
            "udp" => Ok(Self::Udp),
            "xdp" => Ok(Self::Xdp),
            other => {
                let message = format!("{VARIABLE}={other}: it can be auto, ring, shm, udp or xdp");
                Err(io::Error::new(io::ErrorKind::InvalidInput, message))
            }
        }
    }

    /// Whether packets to and from other hosts are to be frames.
    pub(crate) fn frames(self) -> Option<Demand> {
        match self {
            Self::Xdp => Some(Demand::Always),
            Self::Auto | Self::Ring => Some(Demand::Offered),
            Self::SharedMemory | Self::Udp => None,
        }
    }

    /// There may be rings between this device and others.
    pub(crate) fn allows_memory(self) -> bool {
        match self {
            Self::Auto | Self::Ring | Self::SharedMemory => true,
            Self::Udp | Self::Xdp => false,
        }
    }

    /// Neighbours may reach one another's registered memory.
    pub(crate) fn shares(self) -> bool {
        match self {
            Self::Auto | Self::SharedMemory => true,
            Self::Ring | Self::Udp | Self::Xdp => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_can_be_asked_for_and_a_mistake_is_explained() {
        for (value, choice, shares) in [
            ("", PathChoice::Auto, true),
            ("auto", PathChoice::Auto, true),
            ("ring", PathChoice::Ring, false),
            ("shm", PathChoice::SharedMemory, true),
        ] {
            assert_eq!(PathChoice::parse(value).unwrap(), choice);
            assert!(choice.allows_memory());
            assert_eq!(choice.shares(), shares);
        }
        for value in ["udp", "xdp"] {
            let packets = PathChoice::parse(value).unwrap();
            assert!(!packets.allows_memory() && !packets.shares());
        }
        let error = PathChoice::parse("tcp").unwrap_err().to_string();
        assert_eq!(error, "ADVERB_PATH=tcp: it can be auto, ring, shm, udp or xdp");
    }
}
