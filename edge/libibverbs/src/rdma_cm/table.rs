//! Identifiers and multicast groups by the numbers that programs know them by.

use super::channel::Channel;
use crate::errno::{Answer, Errno, INVALID};
use adverb_device::locks::Mutex;
use adverb_rdmacm::{Id, Membership};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Arc, MutexGuard};

/// An identifier, and what its program calls it.
pub(super) struct Known {
    pub(super) number: u32,
    /// 0 for a connection that was not accepted yet.
    pub(super) uid: AtomicU64,
    pub(super) id: Id,
    /// How many events of it have been reported.
    pub(super) reported: AtomicU32,
    channel: Mutex<Arc<Channel>>,
    groups: Mutex<Vec<u32>>,
}

/// A multicast group that an identifier has joined.
pub(super) struct Group {
    pub(super) uid: u64,
    pub(super) of: Arc<Known>,
    pub(super) membership: Membership,
    /// How many events of it have been reported.
    pub(super) reported: AtomicU32,
}

enum Entry {
    Group(Arc<Group>),
    Identifier(Arc<Known>),
}

struct Table {
    entries: BTreeMap<u32, Entry>,
    last: u32,
}

static TABLE: Mutex<Table> = Mutex::new(Table { entries: BTreeMap::new(), last: 0 });

impl Table {
    /// A number that is free, and was not given for as long as possible. 0 is none.
    fn number(&mut self) -> Answer<u32> {
        if self.entries.len() >= ENTRIES_MAX {
            return Err(Errno(libc::ENOMEM));
        }
        loop {
            self.last = self.last.wrapping_add(1);
            if self.last != 0 && !self.entries.contains_key(&self.last) {
                return Ok(self.last);
            }
        }
    }
}

impl Known {
    /// The channel that its events go to.
    pub(super) fn channel(&self) -> MutexGuard<'_, Arc<Channel>> {
        self.channel.lock()
    }
}

/// Gives an identifier a number. Its events come to `channel`.
pub(super) fn insert(channel: &Arc<Channel>, uid: u64, id: Id) -> Answer<Arc<Known>> {
    let mut table = TABLE.lock();
    let number = table.number()?;
    id.set_user(number.into());
    let known = Arc::new(Known {
        number,
        uid: AtomicU64::new(uid),
        id,
        reported: AtomicU32::new(0),
        channel: Mutex::new(Arc::clone(channel)),
        groups: Mutex::new(Vec::new()),
    });
    table.entries.insert(number, Entry::Identifier(Arc::clone(&known)));
    Ok(known)
}

/// Gives a group a number.
pub(super) fn insert_group(
    of: &Arc<Known>,
    uid: u64,
    join: impl FnOnce(u64) -> Answer<Membership>,
) -> Answer<u32> {
    let mut table = TABLE.lock();
    let number = table.number()?;
    let membership = join(number.into())?;
    let group = Group { uid, of: Arc::clone(of), membership, reported: AtomicU32::new(0) };
    table.entries.insert(number, Entry::Group(Arc::new(group)));
    of.groups.lock().push(number);
    Ok(number)
}

/// The identifier with a number.
pub(super) fn known(number: u32) -> Answer<Arc<Known>> {
    match TABLE.lock().entries.get(&number) {
        Some(Entry::Identifier(known)) => Ok(Arc::clone(known)),
        Some(Entry::Group(_)) | None => Err(Errno(libc::ENOENT)),
    }
}

/// The identifier with a number, whose events have to go to `channel`.
pub(super) fn of_channel(number: u32, channel: &Arc<Channel>) -> Answer<Arc<Known>> {
    let known = known(number)?;
    let is_its = Arc::ptr_eq(&known.channel(), channel);
    if is_its { Ok(known) } else { Err(INVALID) }
}

/// The group with a number.
pub(super) fn group(number: u32) -> Answer<Arc<Group>> {
    match TABLE.lock().entries.get(&number) {
        Some(Entry::Group(group)) => Ok(Arc::clone(group)),
        Some(Entry::Identifier(_)) | None => Err(Errno(libc::ENOENT)),
    }
}

/// Takes an identifier and its groups out of the table.
pub(super) fn remove(known: &Known) {
    let mut table = TABLE.lock();
    table.entries.remove(&known.number);
    for group in known.groups.lock().drain(..) {
        table.entries.remove(&group);
    }
}

/// Takes a group out of the table.
pub(super) fn remove_group(number: u32, group: &Group) {
    TABLE.lock().entries.remove(&number);
    group.of.groups.lock().retain(|known| *known != number);
}

/// All identifiers whose events go to `channel`.
pub(super) fn all_of(channel: &Arc<Channel>) -> Vec<Arc<Known>> {
    let its = |entry: &Entry| match entry {
        Entry::Identifier(known) if Arc::ptr_eq(&known.channel(), channel) => {
            Some(Arc::clone(known))
        }
        Entry::Group(_) | Entry::Identifier(_) => None,
    };
    TABLE.lock().entries.values().filter_map(its).collect()
}

/// How many identifiers and groups a process may have.
const ENTRIES_MAX: usize = 1 << 20;
