//! Devices: the software ones first, then those of the real library.
//!
//! `ADVERB_DEVICES` chooses and orders them: names, `soft` for all of ours, `hw` for all others, with commas between.
//! Structures of our devices are made once and stay, so that a program's pointer is good after it has freed the
//! list.
//!
//! # Safety
//!
//! 1. As in `export.rs`.
//! 2. A list is an array of words: its length, the list of the real library or null, the devices, null. Programs have
//!    the address of the first device. It goes back whole.
//! 3. Vendors' libraries look behind `struct ibv_device` for the functions of a provider: zeros are there, so
//!    none are found.

use crate::boxed::{Boxed, Plain};
use crate::context;
use crate::errno::{Answer, Errno, INVALID};
use crate::export::{export, guarded};
use crate::real::Function;
use crate::sysfs::DEV_PREFIX;
use crate::table;
use adverb_device::locks::Mutex;
use adverb_device::{Device, devices};
use adverb_ibv::layout::{self, value};
use libc::{c_char, c_int};
use std::cell::Cell;
use std::ffi::CStr;
use std::sync::OnceLock;

/// What is ours of a device, behind what vendors' libraries look for (rule 3).
#[repr(C)]
pub(crate) struct Inner {
    padding: [u64; 128],
    pub(crate) name: String,
    guid: u64,
    index: u32,
}

/// A device.
pub(crate) type Dev = Boxed<layout::Device, Inner>;

/// All that were ever listed, by address.
static KNOWN: Mutex<Vec<usize>> = Mutex::new(Vec::new());

/// The device is one of ours; null is, and is refused there.
///
/// # Safety
///
/// None: it is only compared.
pub(crate) unsafe fn is_ours(device: *mut layout::Device) -> bool {
    device.is_null() || KNOWN.lock().contains(&device.addr())
}

/// The structure of a device.
fn structure(device: &Device) -> *mut layout::Device {
    let mut known = KNOWN.lock();
    for address in known.iter() {
        let pointer: *mut layout::Device = std::ptr::with_exposed_provenance_mut(*address);
        // SAFETY: one of those below, which stay.
        let old = unsafe { Dev::of(pointer) };
        if old.name == device.name && old.guid == device.guid && old.index == device.index {
            return pointer;
        }
    }
    let mut c = layout::Device::zeroed();
    c.node_type = value::NODE_CA;
    copy(&mut c.name, &device.name);
    copy(&mut c.dev_name, &format!("{DEV_PREFIX}{}", device.name));
    copy(&mut c.dev_path, &format!("/sys/class/infiniband_verbs/{DEV_PREFIX}{}", device.name));
    copy(&mut c.ibdev_path, &format!("/sys/class/infiniband/{}", device.name));
    let inner = Inner {
        padding: [0; 128],
        name: device.name.clone(),
        guid: device.guid,
        index: device.index,
    };
    let made = Dev::give(c, inner);
    known.push(made.expose_provenance());
    made
}

/// Puts a name into a field, with a zero behind it.
fn copy(field: &mut [c_char], name: &str) {
    let room = field.len().saturating_sub(1);
    for (place, byte) in field.iter_mut().zip(name.bytes().take(room)) {
        *place = c_char::from_ne_bytes([byte]);
    }
}

type GetList = unsafe extern "C" fn(*mut c_int) -> *mut *mut layout::Device;
type FreeList = unsafe extern "C" fn(*mut *mut layout::Device);
static GET_LIST: Function<GetList> = Function::new("ibv_get_device_list", "IBVERBS_1.1");
static FREE_LIST: Function<FreeList> = Function::new("ibv_free_device_list", "IBVERBS_1.1");

/// The devices of the real library: the list to give back, and what is in it. None if there is no such library, or
/// the kernel has no RDMA.
fn foreign() -> (*mut *mut layout::Device, Vec<*mut layout::Device>) {
    let mut count: c_int = 0;
    let Some(get) = GET_LIST.get() else {
        return (std::ptr::null_mut(), Vec::new());
    };
    // SAFETY: the function of this name, and a place for the number.
    let list = unsafe { get(&raw mut count) };
    if list.is_null() {
        return (list, Vec::new());
    }
    let count = usize::try_from(count).unwrap_or(0);
    // SAFETY: the library says how many there are.
    let devices = unsafe { std::slice::from_raw_parts(list, count) };
    (list, devices.to_vec())
}

fn name_of(device: *mut layout::Device) -> String {
    // SAFETY: a device of the list of the real library, or one of ours.
    let name = unsafe { &raw const (*device).name };
    // SAFETY: it ends with a zero.
    let name = unsafe { CStr::from_ptr(name.cast()) };
    name.to_string_lossy().into_owned()
}

/// Puts devices into the order that was asked for.
fn chosen(
    choice: Option<&str>,
    ours: Vec<*mut layout::Device>,
    theirs: Vec<*mut layout::Device>,
) -> Vec<*mut layout::Device> {
    let Some(choice) = choice.filter(|choice| !choice.is_empty()) else {
        return ours.into_iter().chain(theirs).collect();
    };
    let mut all: Vec<*mut layout::Device> = Vec::new();
    for word in choice.split(',').map(str::trim) {
        let wanted = |device: &&*mut layout::Device| match word {
            "soft" => ours.contains(device),
            "hw" => theirs.contains(device),
            name => name_of(**device) == name,
        };
        for device in ours.iter().chain(&theirs).filter(wanted) {
            if !all.contains(device) {
                all.push(*device);
            }
        }
    }
    all
}

/// Our devices, as the system has them now.
fn soft() -> Vec<*mut layout::Device> {
    devices().unwrap_or_default().iter().map(structure).collect()
}

const CHOICE: &str = "ADVERB_DEVICES";

/// The first device that the program sees is one of ours, as it was when this was first asked.
pub(crate) fn software_comes_first() -> bool {
    static FIRST: OnceLock<bool> = OnceLock::new();
    *FIRST.get_or_init(|| {
        let choice = std::env::var(CHOICE).ok();
        let (list, theirs) = foreign();
        let ours = soft();
        let first = chosen(choice.as_deref(), ours.clone(), theirs).first().copied();
        if let (false, Some(free)) = (list.is_null(), FREE_LIST.get()) {
            // SAFETY: the list that the real library gave.
            unsafe { free(list) };
        }
        first.is_some_and(|first| ours.contains(&first))
    })
}

thread_local! {
    /// The real library looks for a device to import: it goes by what it has behind each of the public list, and knows its own alone.
    static IMPORTS: Cell<bool> = const { Cell::new(false) };
}

export! {
    pointer "IBVERBS_1.1"
    fn ibv_get_device_list(count: Option<&mut c_int>) -> *mut *mut layout::Device {
        crate::rdma_cm::attend();
        crate::files::attend();
        let (list, theirs) = foreign();
        let choice = std::env::var(CHOICE).ok();
        let devices = match IMPORTS.get() {
            true => theirs,
            false => chosen(choice.as_deref(), soft(), theirs),
        };
        if let Some(count) = count {
            *count = c_int::try_from(devices.len()).unwrap_or(c_int::MAX);
        }
        let words = devices.len() + 3;
        let head = [std::ptr::without_provenance_mut(words), list.cast()];
        let all = head.into_iter().chain(devices).chain([std::ptr::null_mut()]);
        let all: Box<[*mut layout::Device]> = all.collect();
        let start: *mut *mut layout::Device = Box::into_raw(all).cast();
        // SAFETY: within the array (rule 2).
        Ok(unsafe { start.add(2) })
    }
}

crate::export::versioned!("IBVERBS_1.1" ibv_free_device_list);
unsafe extern "C" fn ibv_free_device_list(list: *mut *mut layout::Device) {
    let _ = guarded(|| {
        if list.is_null() {
            return Err(INVALID);
        }
        // SAFETY: rule 2.
        let start = unsafe { list.sub(2) };
        // SAFETY: rule 2.
        let words = unsafe { start.read() }.addr();
        let all = std::ptr::slice_from_raw_parts_mut(start, words);
        // SAFETY: rule 2.
        let all = unsafe { Box::from_raw(all) };
        let theirs = all.get(1).filter(|list| !list.is_null());
        if let (Some(theirs), Some(free)) = (theirs, FREE_LIST.get()) {
            // SAFETY: the list that the real library gave.
            unsafe { free(theirs.cast()) };
        }
        Ok(())
    });
}

export! {
    pointer "IBVERBS_1.1"
    fn ibv_get_device_name(device: *mut layout::Device) -> *mut c_char {
        if device.is_null() {
            return Err(INVALID);
        }
        // SAFETY: every device has its name at this place.
        Ok(unsafe { (&raw mut (*device).name).cast() })
    }
}

export! {
    value "IBVERBS_1.1"
    fn ibv_get_device_guid(device: *mut layout::Device) -> u64, of device is is_ours, {
        guid(device)
    }
}

/// The identifier of a device, in network order.
fn guid(device: *mut layout::Device) -> Answer<u64> {
    if device.is_null() {
        return Err(INVALID);
    }
    // SAFETY: one of ours, which stay.
    Ok(unsafe { Dev::of(device) }.guid.to_be())
}

export! {
    value "IBVERBS_1.9"
    fn ibv_get_device_index(device: *mut layout::Device) -> c_int, of device is is_ours, {
        // The kernel has no number for it; programs go by the identifier then.
        Ok(-1)
    }
}

export! {
    pointer "IBVERBS_1.1"
    fn ibv_open_device(device: *mut layout::Device) -> *mut layout::Context, of device is is_ours, {
        if device.is_null() {
            return Err(INVALID);
        }
        // SAFETY: one of ours, which stay.
        table::open(device, &unsafe { Dev::of(device) }.name)
    }
}

export! {
    pointer "IBVERBS_1.10"
    fn ibv_import_device(fd: c_int) -> *mut layout::Context {
        if let Some(name) = context::name_behind(fd)
            && let Some(device) = soft().into_iter().find(|device| name_of(*device) == name)
        {
            return table::open(device, &name);
        }
        type Import = unsafe extern "C" fn(c_int) -> *mut layout::Context;
        static IMPORT: Function<Import> = Function::new("ibv_import_device", "IBVERBS_1.10");
        let import = IMPORT.get().ok_or_else(|| no_device(fd))?;
        IMPORTS.set(true);
        // SAFETY: the function of this name, with the program's argument.
        let made = unsafe { import(fd) };
        IMPORTS.set(false);
        match made.is_null() {
            true => Err(Errno(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL))),
            false => Ok(made),
        }
    }
}

/// What the real library says of a file that is no device's: the kernel's devices are files of characters.
fn no_device(fd: c_int) -> Errno {
    use std::os::unix::fs::FileTypeExt;
    let file = std::fs::metadata(format!("/proc/self/fd/{fd}"));
    match file.is_ok_and(|file| file.file_type().is_char_device()) {
        true => Errno(libc::ENODEV),
        false => INVALID,
    }
}
