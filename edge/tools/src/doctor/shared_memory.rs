//! `/dev/shm`, or what takes its place: whether files can be made there, and how much room there is for rings.
//!
//! Devices need neither: what they share lies in files without a path (`files_in_memory`).

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::{Finding, Grade, leftovers};

/// Whether the tree of `/sys/class/infiniband` can be made.
pub(super) fn tree() -> Finding {
    const CHECK: &str = "shared memory";
    let base = leftovers::trees_base();
    let place = base.join(format!("adverb-doctor-{}", std::process::id()));
    let allowed = adverb_sys::process::may_make(4096).map_err(io::Error::from);
    let made = allowed.and_then(|()| fs::write(&place, [0; 4096]));
    let _ = fs::remove_file(&place);
    match made {
        Ok(()) => Finding::good(CHECK, format!("{} can be written to", base.display())),
        Err(error) => Finding {
            check: CHECK,
            grade: Grade::Costs,
            found: format!("{}: {error}", base.display()),
            cost: "the files that programs look for in /sys/class/infiniband are not shown; devices do without it",
            cure: "mount a tmpfs at /dev/shm, or set TMPDIR".into(),
        },
    }
}

/// Room where programs under `adverb sockets` meet.
pub(super) fn room() -> Finding {
    let named = std::env::var_os("ADVERB_SOCKETS_SHM_DIR").filter(|named| !named.is_empty());
    let place = named.map_or_else(|| PathBuf::from("/dev/shm"), PathBuf::from);
    let room = rustix::fs::statvfs(&place).map_err(io::Error::from).map(|about| Room {
        free: about.f_bavail.saturating_mul(about.f_frsize),
        all: about.f_blocks.saturating_mul(about.f_frsize),
    });
    finding(&place, room)
}

/// Bytes of a file system. One without a limit has none at all.
#[derive(Clone, Copy, Debug)]
struct Room {
    free: u64,
    all: u64,
}

fn finding(place: &Path, room: io::Result<Room>) -> Finding {
    const CHECK: &str = "room for rings";
    let (found, cost) = match room {
        Err(error) => (format!("{}: {error}", place.display()), NO_RINGS),
        Ok(Room { free, all }) => {
            let found = match all {
                0 => format!("{} has no limit", place.display()),
                all => format!("{}: {} of {} MiB are free", place.display(), free >> 20, all >> 20),
            };
            if free < all / MAKE_SHARE {
                (found, NO_RINGS)
            } else if free < all / GROW_SHARE {
                (found, NO_LARGE_RINGS)
            } else if all > 0 && all < ALL_FEW_BYTES {
                (found, FEW_RINGS)
            } else {
                return Finding::good(CHECK, found);
            }
        }
    };
    Finding {
        check: CHECK,
        grade: Grade::Costs,
        found,
        cost,
        cure: "mount -o remount,size=1g /dev/shm, --shm-size=1g for a container, or remove what fills it"
            .into(),
    }
}

const NO_RINGS: &str = "adverb sockets: new connections and UDP sockets get no shared memory, and go by the kernel; devices do without it";
const NO_LARGE_RINGS: &str = "adverb sockets: rings of streams do not grow, about a third of the bandwidth of long messages; devices do without it";
const FEW_RINGS: &str = "adverb sockets: at 512 KiB a connection, or 8 MiB with a stream each way, later connections go by the kernel; devices do without it";
/// Rings are made while more than this part is free, and grow while more than that part is: `rendezvous.rs` of adverb-sockets.
const MAKE_SHARE: u64 = 4;
const GROW_SHARE: u64 = 2;
/// Room for some four hundred connections, or two dozen streams. Containers have 64 MiB by default.
const ALL_FEW_BYTES: u64 = 256 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_graded_as_rings_are_made_and_grow() {
        const GIB: u64 = 1 << 30;
        let cost = |free, all| finding(Path::new("/dev/shm"), Ok(Room { free, all })).cost;
        assert_eq!(cost(GIB / 4 - 1, GIB), NO_RINGS);
        assert_eq!(cost(GIB / 4, GIB), NO_LARGE_RINGS);
        assert_eq!(cost(GIB / 2, GIB), "");
        assert_eq!(cost(64 << 20, 64 << 20), FEW_RINGS);
        assert_eq!(cost(0, 0), "", "no limit");
        let missing = io::Error::from(io::ErrorKind::NotFound);
        assert_eq!(finding(Path::new("/nowhere"), Err(missing)).cost, NO_RINGS);
    }
}
