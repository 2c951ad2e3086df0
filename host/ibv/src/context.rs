//! Devices, open contexts, and what happens to them unasked.
//!
//! # Safety
//!
//! 1. A [`Context`] holds what `ibv_open_device` returned until it is dropped, and whatever is made
//!    from it holds the `Context`. So the pointer is good for as long as it can be used.
//! 2. The library's functions may be called from any thread, on any object at once, but for ending it:
//!    that is done in `drop`, when no other code has it.
//! 3. An asynchronous event is acknowledged before the call that took it returns. The library does not
//!    let an object end before that, so that the object of an event is there to be looked at.

use crate::layout::{
    self, AsyncEvent, DeviceAttr, GidEntry, PortAttr, QueryPort, VerbsContext, value,
};
use crate::library::{self, Library, library};
use crate::object::addr_of_context;
use std::ffi::CStr;
use std::io;
use std::mem::{MaybeUninit, offset_of};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::ptr::NonNull;

/// A device that the library knows.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Found {
    /// Its name, such as `mlx5_0`.
    pub name: String,
    /// The node's identifier.
    pub guid: u64,
    /// `enum ibv_node_type`.
    pub node_type: i32,
}

/// The list of devices, as the library lends it.
struct List {
    library: &'static Library,
    first: NonNull<*mut layout::Device>,
    len: usize,
}

impl List {
    /// `None` if there is no library, or it says that there is nothing to list. Where the kernel has no device,
    /// the system's own library is not asked: it warns of limits on locked memory that then matter to nothing.
    fn new() -> Option<Self> {
        if !library::is_named() && has_no_device(Path::new("/sys/class")) {
            return None;
        }
        let library = library()?;
        let mut len = 0;
        // SAFETY: a place for the number of devices.
        let first = unsafe { (library.ibv_get_device_list)(&raw mut len) };
        let (first, len) = (NonNull::new(first)?, usize::try_from(len).unwrap_or(0));
        Some(Self { library, first, len })
    }

    fn iter(&self) -> impl Iterator<Item = NonNull<layout::Device>> + '_ {
        // SAFETY: the list has `len` entries until it is freed, which is when `self` is dropped.
        let all = unsafe { std::slice::from_raw_parts(self.first.as_ptr(), self.len) };
        all.iter().filter_map(|device| NonNull::new(*device))
    }

    fn look(&self, device: NonNull<layout::Device>) -> Found {
        // SAFETY: a device of the list, which is there until the list is freed, and does not change.
        let layout::Device { name, node_type, .. } = unsafe { device.as_ref() };
        let (bytes, node_type) = (name.map(|c| c.cast_unsigned()), *node_type);
        let name = CStr::from_bytes_until_nul(&bytes).unwrap_or_default().to_string_lossy();
        // SAFETY: as above.
        let guid = unsafe { (self.library.ibv_get_device_guid)(device.as_ptr()) };
        Found { name: name.into_owned(), guid: u64::from_be(guid), node_type }
    }
}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: a list that was got from the library, once.
        unsafe { (self.library.ibv_free_device_list)(self.first.as_ptr()) }
    }
}

/// The kernel says that it has no RDMA device, in `classes` of sysfs.
fn has_no_device(classes: &Path) -> bool {
    match std::fs::read_dir(classes.join("infiniband")) {
        Ok(mut devices) => devices.next().is_none(),
        Err(error) => error.kind() == io::ErrorKind::NotFound && classes.is_dir(),
    }
}

/// The devices that the library knows: none where there is no library.
pub fn devices() -> Vec<Found> {
    List::new().map_or_else(Vec::new, |list| list.iter().map(|d| list.look(d)).collect())
}

/// An open device. `struct ibv_context`.
#[derive(Debug)]
pub struct Context {
    raw: NonNull<layout::Context>,
    pub(crate) library: &'static Library,
    name: String,
}

// SAFETY: the library may be called from any thread (rule 2).
unsafe impl Send for Context {}
// SAFETY: the library may be called from any thread (rule 2).
unsafe impl Sync for Context {}

/// Something that happened unasked.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Event {
    /// `enum ibv_event_type`.
    pub kind: i32,
    /// To what.
    pub affected: Affected,
}

/// What an event happened to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Affected {
    /// A completion queue.
    Cq {
        /// What its maker gave it.
        context: u64,
    },
    /// The device.
    Device,
    /// A port.
    Port {
        /// Counted from 1.
        number: u8,
    },
    /// A queue pair.
    Qp {
        /// Its number.
        number: u32,
        /// What its maker gave it.
        context: u64,
    },
    /// A shared receive queue.
    Srq {
        /// What its maker gave it.
        context: u64,
    },
}

impl Context {
    /// Opens the device with this name; `None` if there is none.
    ///
    /// # Errors
    ///
    /// The library's, such as a lack of rights to the device.
    pub fn open(name: &str) -> io::Result<Option<Self>> {
        let Some(list) = List::new() else {
            return Ok(None);
        };
        let Some(device) = list.iter().find(|device| list.look(*device).name == name) else {
            return Ok(None);
        };
        // SAFETY: a device of the list, which is there until the list is freed; what is opened keeps
        // it beyond that.
        let raw = unsafe { (list.library.ibv_open_device)(device.as_ptr()) };
        let raw = NonNull::new(raw).ok_or_else(io::Error::last_os_error)?;
        let context = Self { raw, library: list.library, name: name.to_owned() };
        nonblocking(context.async_fd())?;
        Ok(Some(context))
    }

    /// The device's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn raw(&self) -> *mut layout::Context {
        self.raw.as_ptr()
    }

    /// A descriptor that can be read while there are events.
    pub fn async_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the pointer is good for as long as `self` lives (rule 1).
        let fd = unsafe { (*self.raw()).async_fd };
        // SAFETY: the context keeps the descriptor open for as long as `self` lives (rule 1).
        unsafe { BorrowedFd::borrow_raw(fd) }
    }

    /// How many completion vectors there are.
    pub fn comp_vectors(&self) -> u32 {
        // SAFETY: the pointer is good for as long as `self` lives (rule 1).
        let vectors = unsafe { (*self.raw()).num_comp_vectors };
        u32::try_from(vectors).unwrap_or(1)
    }

    /// The bounds of the device.
    ///
    /// # Errors
    ///
    /// The library's.
    pub fn query_device(&self) -> io::Result<DeviceAttr> {
        let mut attr = MaybeUninit::zeroed();
        // SAFETY: rule 1, and a place of the size that the library fills.
        let code = unsafe { (self.library.ibv_query_device)(self.raw(), attr.as_mut_ptr()) };
        check(code)?;
        // SAFETY: zeros are a value of it, and so is what the library put there.
        Ok(unsafe { attr.assume_init() })
    }

    /// What a port is like now.
    ///
    /// # Errors
    ///
    /// The library's.
    pub fn query_port(&self, number: u8) -> io::Result<PortAttr> {
        let mut attr = MaybeUninit::zeroed();
        let code = match self.whole_query_port() {
            // SAFETY: rule 1, and a place of the size that is named.
            Some(query) => unsafe {
                query(self.raw(), number, attr.as_mut_ptr(), size_of::<PortAttr>())
            },
            // SAFETY: rule 1, and a place at least of the size that the library fills.
            None => unsafe { (self.library.ibv_query_port)(self.raw(), number, attr.as_mut_ptr()) },
        };
        check(code)?;
        // SAFETY: zeros are a value of it, and so is what the library put there.
        Ok(unsafe { attr.assume_init() })
    }

    /// The provider's own function, where the context is one of the kind that has it: the header's
    /// inline function takes this way, and the library's exported one fills less.
    fn whole_query_port(&self) -> Option<QueryPort> {
        // SAFETY: the pointer is good for as long as `self` lives (rule 1).
        let compat = unsafe { (*self.raw()).abi_compat };
        if compat.addr() != usize::MAX {
            return None;
        }
        let before = offset_of!(VerbsContext, context);
        // SAFETY: all ones say that the context lies in a `VerbsContext`, at this offset.
        let whole = unsafe { self.raw().byte_sub(before) }.cast::<VerbsContext>();
        let known = size_of::<VerbsContext>() - offset_of!(VerbsContext, query_port);
        // SAFETY: `sz` lies right before the context in every release.
        let sz = unsafe { (*whole).sz };
        if sz < known {
            return None;
        }
        // SAFETY: `sz` says that the field is there.
        unsafe { (*whole).query_port }
    }

    /// The GID table of a port.
    ///
    /// # Errors
    ///
    /// The library's.
    pub fn gids(&self, port: u8) -> io::Result<Vec<GidEntry>> {
        let table = usize::try_from(self.query_port(port)?.gid_tbl_len).unwrap_or(0);
        if let Some(query) = self.library._ibv_query_gid_table {
            let mut entries = vec![GidEntry::default(); table.max(1)];
            let size = size_of::<GidEntry>();
            // SAFETY: rule 1, and room for as many entries of that size as is named.
            let got = unsafe { query(self.raw(), entries.as_mut_ptr(), entries.len(), 0, size) };
            if let Ok(got) = usize::try_from(got) {
                entries.truncate(got);
                entries.retain(|entry| entry.port_num == u32::from(port));
                return Ok(entries);
            }
        }
        Ok((0..u32::try_from(table).unwrap_or(0)).filter_map(|at| self.gid(port, at)).collect())
    }

    /// One entry, of which only the identifier is known; `None` if it is empty.
    fn gid(&self, port: u8, index: u32) -> Option<GidEntry> {
        let mut gid = [0; 16];
        let at = i32::try_from(index).ok()?;
        // SAFETY: rule 1, and a place for an identifier.
        let code = unsafe { (self.library.ibv_query_gid)(self.raw(), port, at, &raw mut gid) };
        let gid_type = value::GID_TYPE_ROCE_V2;
        let entry =
            GidEntry { gid: layout::Gid(gid), gid_index: index, gid_type, ..GidEntry::default() };
        (code == 0 && gid != [0; 16]).then_some(entry)
    }

    /// Takes an event, if there is one, and acknowledges it. Does not wait.
    ///
    /// # Errors
    ///
    /// The library's.
    pub fn take_event(&self) -> io::Result<Option<Event>> {
        let mut raw = AsyncEvent { element: std::ptr::null_mut(), event_type: 0 };
        // SAFETY: rule 1, and a place for an event. The descriptor does not block.
        let code = unsafe { (self.library.ibv_get_async_event)(self.raw(), &raw mut raw) };
        if code != 0 {
            let error = io::Error::last_os_error();
            return if error.kind() == io::ErrorKind::WouldBlock { Ok(None) } else { Err(error) };
        }
        let affected = affected(&raw);
        // SAFETY: the event that was just taken, once (rule 3).
        unsafe { (self.library.ibv_ack_async_event)(&raw mut raw) };
        Ok(Some(Event { kind: raw.event_type, affected }))
    }
}

/// What an event is about: its kind says what its pointer points to.
fn affected(event: &AsyncEvent) -> Affected {
    match event.event_type {
        value::EVENT_CQ_ERR => {
            // SAFETY: events of this kind are about a completion queue, which is there (rule 3).
            let context = unsafe { (*event.element.cast::<layout::Cq>()).cq_context };
            Affected::Cq { context: addr_of_context(context) }
        }
        value::EVENT_QP_FATAL
        | value::EVENT_QP_REQ_ERR
        | value::EVENT_QP_ACCESS_ERR
        | value::EVENT_COMM_EST
        | value::EVENT_SQ_DRAINED
        | value::EVENT_PATH_MIG
        | value::EVENT_PATH_MIG_ERR
        | value::EVENT_QP_LAST_WQE_REACHED => {
            let qp = event.element.cast::<layout::Qp>();
            // SAFETY: events of these kinds are about a queue pair, which is there (rule 3).
            let number = unsafe { (*qp).qp_num };
            // SAFETY: as above.
            let context = unsafe { (*qp).qp_context };
            Affected::Qp { number, context: addr_of_context(context) }
        }
        value::EVENT_SRQ_ERR | value::EVENT_SRQ_LIMIT_REACHED => {
            let srq = event.element.cast::<layout::Srq>();
            // SAFETY: events of these kinds are about a shared receive queue, which is there (rule 3).
            let context = unsafe { (*srq).srq_context };
            Affected::Srq { context: addr_of_context(context) }
        }
        value::EVENT_DEVICE_FATAL => Affected::Device,
        // The union has a number in the place of the pointer; its lower half comes first, or last.
        _ => {
            let bytes = event.element.addr().to_ne_bytes();
            let number = bytes.first_chunk().map_or(0, |low| u32::from_ne_bytes(*low));
            Affected::Port { number: u8::try_from(number).unwrap_or(0) }
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: opened once, and nothing that was made from it is left (rule 1).
        unsafe { (self.library.ibv_close_device)(self.raw()) };
    }
}

/// What a function's return value says: 0, a number of `errno`, or -1 with the number in `errno`.
pub(crate) fn check(code: i32) -> io::Result<()> {
    match code {
        0 => Ok(()),
        1.. => Err(io::Error::from_raw_os_error(code)),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Reading the descriptor never waits from now on.
pub(crate) fn nonblocking(fd: impl AsFd) -> io::Result<()> {
    use std::os::fd::AsRawFd;
    let fd = fd.as_fd().as_raw_fd();
    // SAFETY: an open descriptor, and a command without an argument.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    if flags < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: an open descriptor, and a command whose argument is a number.
    let set = unsafe { libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) };
    if set < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_is_believed_where_it_says_something() {
        let classes = std::env::temp_dir().join(format!("adverb-classes-{}", std::process::id()));
        assert!(!has_no_device(&classes), "sysfs is not there: nothing is known");
        std::fs::create_dir_all(classes.join("net")).unwrap();
        assert!(has_no_device(&classes));
        std::fs::create_dir(classes.join("infiniband")).unwrap();
        assert!(has_no_device(&classes));
        std::fs::create_dir(classes.join("infiniband/rxe0")).unwrap();
        assert!(!has_no_device(&classes));
        std::fs::remove_dir_all(&classes).unwrap();
    }
}
