//! bpf(2): maps, programs that see the packets of an interface before the kernel does, and what keeps them there.
//!
//! Everything here lasts as long as its descriptor: a program leaves its interface when its [`Attachment`] goes, also
//! when the process is killed. Nothing is pinned to a file system. `adverb-xdp` says what the programs are.
//!
//! # Safety
//!
//! 1. The kernel reads and writes what the attributes of a command point to: memory that the caller of `command`
//!    lends for the length of the call, as long as the attributes say.
//! 2. The attributes of each command are laid out as `union bpf_attr` of `linux/bpf.h` begins for it, in integers alone
//!    and without padding. The kernel takes what is missing at their end as zeros.
//! 3. A map's keys and values have the lengths that it was made with: [`Map`] checks every slice.

use std::ffi::{c_int, c_long};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::fork::KeptFd;

/// What a map holds.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum MapKind {
    /// Values by their numbers, which start at 0; keys have four bytes. A process that has its descriptor may map it.
    Array,
    /// Values by their keys.
    Hash,
    /// AF_XDP sockets by their places; key and value have four bytes.
    XdpSockets,
}

/// A table that programs in the kernel look things up in.
#[derive(Debug)]
pub struct Map {
    fd: KeptFd,
    key_bytes: usize,
    value_bytes: usize,
}

impl Map {
    /// An empty one, for at most `entries`.
    ///
    /// # Errors
    ///
    /// `EPERM` without the privilege (CAP_BPF); no memory or descriptors left.
    pub fn create(
        kind: MapKind,
        key_bytes: usize,
        value_bytes: usize,
        entries: u32,
    ) -> io::Result<Self> {
        let (kind, flags) = match kind {
            MapKind::Array => (BPF_MAP_TYPE_ARRAY, BPF_F_MMAPABLE),
            MapKind::Hash => (BPF_MAP_TYPE_HASH, 0),
            MapKind::XdpSockets => (BPF_MAP_TYPE_XSKMAP, 0),
        };
        let attributes = [kind, word_of(key_bytes)?, word_of(value_bytes)?, entries, flags];
        // SAFETY: numbers alone, in the order of `BPF_MAP_CREATE` (rule 2).
        let fd = unsafe { new_descriptor(BPF_MAP_CREATE, &attributes) }?;
        Ok(Self { fd, key_bytes, value_bytes })
    }

    /// A table of maps that are made as `model` is, by their numbers, which start at 0. A value is a map's descriptor.
    ///
    /// # Errors
    ///
    /// As [`Map::create`].
    pub fn create_table_of(model: &Self, entries: u32) -> io::Result<Self> {
        let model = model.fd.as_raw_fd().cast_unsigned();
        let attributes = [BPF_MAP_TYPE_ARRAY_OF_MAPS, 4, 4, entries, 0, model];
        // SAFETY: numbers alone, in the order of `BPF_MAP_CREATE` (rule 2).
        let fd = unsafe { new_descriptor(BPF_MAP_CREATE, &attributes) }?;
        Ok(Self { fd, key_bytes: 4, value_bytes: 4 })
    }

    /// Puts a value under a key, whether or not there was one.
    ///
    /// # Errors
    ///
    /// `E2BIG` if there are as many as there may be: nothing has changed. For sockets also `EOPNOTSUPP` if the value is
    /// the descriptor of something else.
    ///
    /// # Panics
    ///
    /// If key or value have not the length that the map was made with.
    pub fn set(&self, key: &[u8], value: &[u8]) -> io::Result<()> {
        assert_eq!((key.len(), value.len()), (self.key_bytes, self.value_bytes), "as it was made");
        let attributes = self.element(key, value.as_ptr());
        // SAFETY: both slices are as long as the map's keys and values (rule 3), and the kernel reads them.
        unsafe { command(BPF_MAP_UPDATE_ELEM, &attributes) }.map(drop)
    }

    /// The value under a key. Those of sockets cannot be had.
    ///
    /// # Panics
    ///
    /// If key or value have not the length that the map was made with.
    pub fn get(&self, key: &[u8], value: &mut [u8]) -> bool {
        assert_eq!((key.len(), value.len()), (self.key_bytes, self.value_bytes), "as it was made");
        let attributes = self.element(key, value.as_mut_ptr());
        // SAFETY: both slices are as long as the map's keys and values (rule 3); the kernel writes the second, which is
        // borrowed to be written.
        unsafe { command(BPF_MAP_LOOKUP_ELEM, &attributes) }.is_ok()
    }

    /// Takes a key out; says whether it was in.
    ///
    /// # Panics
    ///
    /// If the key has not the length that the map was made with.
    pub fn remove(&self, key: &[u8]) -> bool {
        assert_eq!(key.len(), self.key_bytes, "as it was made");
        let attributes = self.element(key, std::ptr::null());
        // SAFETY: the slice is as long as the map's keys (rule 3).
        unsafe { command(BPF_MAP_DELETE_ELEM, &attributes) }.is_ok()
    }

    fn element(&self, key: &[u8], value: *const u8) -> Element {
        let map = self.fd.as_raw_fd().cast_unsigned();
        Element { map, unused: 0, key: key.as_ptr(), value, flags: 0 }
    }
}

impl AsFd for Map {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Attributes of commands on an element of a map.
#[repr(C)]
#[derive(Clone, Copy)]
struct Element {
    map: u32,
    unused: u32,
    key: *const u8,
    value: *const u8,
    flags: u64,
}

/// A program for the packets that an interface receives.
#[derive(Debug)]
pub struct Program {
    fd: KeptFd,
}

impl Program {
    /// Loads a program of eight-byte instructions (RFC 9669).
    ///
    /// # Errors
    ///
    /// `EPERM` without the privilege (CAP_BPF and CAP_NET_ADMIN); a program that the kernel does not take, with the end
    /// of what its verifier says.
    pub fn load_xdp(instructions: &[u64]) -> io::Result<Self> {
        match Self::load(instructions, &mut []) {
            Err(error) if !matches!(error.raw_os_error(), Some(libc::EPERM | libc::ENOMEM)) => {
                let mut log = vec![0; LOG_BYTES];
                Self::load(instructions, &mut log).map_err(|error| with_log(&error, &log))
            }
            loaded => loaded,
        }
    }

    fn load(instructions: &[u64], log: &mut [u8]) -> io::Result<Self> {
        let attributes = Load {
            kind: BPF_PROG_TYPE_XDP,
            count: word_of(instructions.len())?,
            instructions: instructions.as_ptr(),
            licence: c"MIT".as_ptr().cast(),
            log_level: u32::from(!log.is_empty()),
            log_bytes: word_of(log.len())?,
            log: if log.is_empty() { std::ptr::null_mut() } else { log.as_mut_ptr() },
        };
        // SAFETY: the instructions are as many as is said, the licence ends with a zero byte, and the kernel writes at most
        // `log_bytes` to a slice that is borrowed to be written (rule 1).
        Ok(Self { fd: unsafe { new_descriptor(BPF_PROG_LOAD, &attributes) }? })
    }
}

/// Where in the kernel a program sees packets.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum XdpMode {
    /// In the interface's driver.
    Native,
    /// Behind it, where every interface can.
    Generic,
}

/// A program on an interface, for as long as this lives.
#[derive(Debug)]
pub struct Attachment {
    #[expect(dead_code, reason = "held until the program is to leave")]
    fd: KeptFd,
}

impl Attachment {
    /// Puts a program on an interface.
    ///
    /// # Errors
    ///
    /// `EBUSY` if there is one; `EOPNOTSUPP` or another if the driver cannot; `ENODEV` if there is no such interface;
    /// `EPERM` without the privilege (CAP_NET_ADMIN).
    pub fn xdp(program: &Program, interface: u32, mode: XdpMode) -> io::Result<Self> {
        let flags = match mode {
            XdpMode::Native => XDP_FLAGS_DRV_MODE,
            XdpMode::Generic => XDP_FLAGS_SKB_MODE,
        };
        let program = program.fd.as_raw_fd().cast_unsigned();
        let attributes = [program, interface, BPF_XDP, flags];
        // SAFETY: numbers alone, in the order of `BPF_LINK_CREATE` (rule 2).
        Ok(Self { fd: unsafe { new_descriptor(BPF_LINK_CREATE, &attributes) }? })
    }
}

/// Attributes of `BPF_PROG_LOAD`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Load {
    kind: u32,
    count: u32,
    instructions: *const u64,
    licence: *const u8,
    log_level: u32,
    log_bytes: u32,
    log: *mut u8,
}

/// The error of loading, and the last lines of what the verifier said.
fn with_log(error: &io::Error, log: &[u8]) -> io::Error {
    let text = log.split(|byte| *byte == 0).next().unwrap_or_default();
    let tail = text.get(text.len().saturating_sub(LOG_SHOWN_BYTES)..).unwrap_or(text);
    let text = String::from_utf8_lossy(tail);
    io::Error::new(error.kind(), format!("{error}: {}", text.trim()))
}

/// A command that makes a descriptor.
///
/// # Safety
///
/// As [`command`].
unsafe fn new_descriptor<T: Copy>(number: c_int, attributes: &T) -> io::Result<KeptFd> {
    // SAFETY: the caller's promise.
    let fd = unsafe { command(number, attributes) }?;
    let fd = c_int::try_from(fd).map_err(io::Error::other)?;
    // SAFETY: the kernel has just opened it, and nothing else owns it.
    KeptFd::new(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// One call of bpf(2).
///
/// # Safety
///
/// `attributes` are laid out as the command has them (rule 2), and what they point to is there, as long as they say, and
/// may be written where the command writes (rule 1).
unsafe fn command<T: Copy>(number: c_int, attributes: &T) -> io::Result<c_long> {
    let start = std::ptr::from_ref(attributes);
    // SAFETY: the attributes are a reference of the length that is said; the rest is the caller's promise.
    let result = unsafe { libc::syscall(libc::SYS_bpf, number, start, size_of::<T>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn word_of(count: usize) -> io::Result<u32> {
    u32::try_from(count).map_err(io::Error::other)
}

const BPF_MAP_CREATE: c_int = 0;
const BPF_MAP_LOOKUP_ELEM: c_int = 1;
const BPF_MAP_UPDATE_ELEM: c_int = 2;
const BPF_MAP_DELETE_ELEM: c_int = 3;
const BPF_PROG_LOAD: c_int = 5;
const BPF_LINK_CREATE: c_int = 28;
const BPF_MAP_TYPE_HASH: u32 = 1;
const BPF_MAP_TYPE_ARRAY: u32 = 2;
const BPF_MAP_TYPE_ARRAY_OF_MAPS: u32 = 12;
const BPF_MAP_TYPE_XSKMAP: u32 = 17;
const BPF_F_MMAPABLE: u32 = 1 << 10;
const BPF_PROG_TYPE_XDP: u32 = 6;
const BPF_XDP: u32 = 37;
const XDP_FLAGS_SKB_MODE: u32 = 2;
const XDP_FLAGS_DRV_MODE: u32 = 4;
/// What the verifier may say, in bytes, and how much of its end is shown.
const LOG_BYTES: usize = 64 << 10;
const LOG_SHOWN_BYTES: usize = 400;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_keeps_what_it_is_given_up_to_its_bound() {
        let map = match Map::create(MapKind::Hash, 3, 2, 2) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                return println!("skipped: no CAP_BPF");
            }
            map => map.unwrap(),
        };
        map.set(b"one", b"11").unwrap();
        map.set(b"two", b"22").unwrap();
        map.set(b"one", b"33").unwrap();
        assert_eq!(map.set(b"six", b"66").unwrap_err().raw_os_error(), Some(libc::E2BIG));
        let mut value = [0; 2];
        assert!(map.get(b"one", &mut value));
        assert_eq!(&value, b"33");
        assert!(map.remove(b"one") && !map.remove(b"one") && !map.get(b"one", &mut value));
    }

    #[test]
    fn a_program_that_is_wrong_is_refused_with_the_reason() {
        let reads_nothing = [0x95];
        match Program::load_xdp(&reads_nothing) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                // Also what the verifier's refusal is called.
                let text = error.to_string();
                assert!(text.contains("R0 !read_ok") || !text.contains(':'), "{text}");
            }
            other => panic!("{other:?}"),
        }
    }
}
