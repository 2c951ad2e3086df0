//! Interfaces that the daemon owns, and whose frames it hands to programs (`adverb-xdp`).
//!
//! Each has a thread, so that nothing else that the daemon does keeps members waiting. What users have of them is
//! written down for `adverb sockets stat --daemon`. A program on an interface leaves it when the daemon ends, however it
//! ends: packets are the kernel's then.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use adverb_sys::bpf::XdpMode;
use adverb_sys::{netdev, process};
use adverb_xdp::interface::OpenError;
use adverb_xdp::owner::{Count, name_of};
use adverb_xdp::{Config, Interface, Owner};
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::top::group::printable;

/// The interfaces of this daemon.
#[derive(Debug)]
pub(super) struct Interfaces(Vec<Owned>);

#[derive(Debug)]
struct Owned {
    name: String,
    mode: &'static str,
    /// Why it is not in the driver.
    reason: Option<String>,
    /// What users have of it; `None` once it is owned no more.
    counts: Arc<Mutex<Option<BTreeMap<u32, Count>>>>,
}

impl Interfaces {
    /// Takes all of these interfaces, for programs of this user and of `users`, or none.
    pub(super) fn own(
        names: &[String],
        users: &[u32],
        queues: Option<NonZeroU32>,
    ) -> Result<Self, Failure> {
        let queues = queues.map_or(u32::MAX, NonZeroU32::get);
        let owners = names.iter().map(|name| Ok((name, open(name, queues)?)));
        let owners: Vec<_> = owners.collect::<Result<_, Failure>>()?;
        let mut users = users.to_vec();
        users.push(process::user());
        let serve = |(name, (index, owner)): (&String, (u32, Owner))| {
            let (mode, reason) = (owner.interface().mode(), owner.interface().reason());
            let (mode, reason) = (word(mode), reason.map(str::to_owned));
            if let Some(reason) = &reason {
                eprintln!("adverb: {name}: frames are taken behind the driver: {reason}");
            }
            let counts = Arc::new(Mutex::new(Some(BTreeMap::new())));
            let (written, users, shown) = (Arc::clone(&counts), users.clone(), name.clone());
            let run = move || {
                let why = tend(owner, index, &users, &written, &shown);
                *lock(&written) = None;
                eprintln!("adverb: {shown} is the kernel's alone again: {why}");
            };
            let started = thread::Builder::new().name(format!("xdp {name}")).spawn(run);
            let owned = Owned { name: name.clone(), mode, reason, counts };
            started.map(|_| owned).map_err(|error| Failure::Failed(format!("{name}: {error}")))
        };
        owners.into_iter().map(serve).collect::<Result<_, _>>().map(Self)
    }

    /// What users have of each that a caller may see.
    pub(super) fn describe(&self, may_see: impl Fn(u32) -> bool) -> Vec<Value> {
        let describe = |Owned { name, mode, reason, counts }: &Owned| {
            let counts = lock(counts).clone()?;
            let seen = counts.iter().filter(|(user, _)| may_see(**user));
            let users: Vec<_> = seen
                .map(|(user, Count { members, keys })| {
                    json!({ "uid": user, "members": members, "keys": keys })
                })
                .collect();
            Some(json!({ "interface": name, "mode": mode, "reason": reason, "users": users }))
        };
        self.0.iter().filter_map(describe).collect()
    }
}

/// The line for an interface, if it is one that is described.
pub(super) fn text_of(what: &Value) -> Option<String> {
    let name = printable(what.get("interface")?.as_str()?);
    let mode = printable(what.get("mode")?.as_str()?);
    let mut text = format!("{name:<12} frames, {mode} mode");
    for user in what.get("users")?.as_array()? {
        let count = |field: &str| user.get(field).and_then(Value::as_u64).unwrap_or(0);
        let (user, members, keys) = (count("uid"), count("members"), count("keys"));
        text.push_str(&format!("; user {user}: {members} programs, {keys} keys"));
    }
    Some(text)
}

/// The owner of the interface of this name, with its number.
fn open(name: &str, queues: u32) -> Result<(u32, Owner), Failure> {
    let failed = |why: &dyn std::fmt::Display| Failure::Failed(format!("interface {name}: {why}"));
    let all = netdev::interfaces().map_err(|error| failed(&error))?;
    let found = all.iter().find(|interface| interface.name == name);
    let index = found.ok_or_else(|| failed(&OpenError::NotFound))?.index;
    let interface = Interface::open(index, &Config::default()).map_err(|error| match error {
        OpenError::Privilege(_) => Failure::Skipped(format!("interface {name}: {error}")),
        OpenError::NotFound | OpenError::Occupied | OpenError::System { .. } => failed(&error),
    })?;
    let owner = Owner::new(interface, &name_of(index), queues).map_err(|error| failed(&error))?;
    Ok((index, owner))
}

/// Serves members until the interface is gone, or the system refuses; says which. The first refusal for want of memory, or of
/// a right, is printed with its reason; members that are refused later have the same one, most likely.
fn tend(
    mut owner: Owner,
    index: u32,
    users: &[u32],
    counts: &Mutex<Option<BTreeMap<u32, Count>>>,
    name: &str,
) -> String {
    let mut looked = Instant::now();
    let mut has_told = false;
    loop {
        if let Err(error) = owner.step(Some(STEP), |peer| users.contains(&peer.uid)) {
            return error.to_string();
        }
        *lock(counts) = Some(owner.by_user());
        if !has_told && let Some(refusal) = owner.refusal() {
            eprintln!("adverb: {name}: frames are refused to {refusal}");
            has_told = true;
        }
        if looked.elapsed() > LOOK {
            looked = Instant::now();
            // A look that fails says nothing.
            let is_gone = netdev::interfaces()
                .is_ok_and(|all| all.iter().all(|interface| interface.index != index));
            if is_gone {
                return OpenError::NotFound.to_string();
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

const fn word(mode: XdpMode) -> &'static str {
    match mode {
        XdpMode::Native => "native",
        XdpMode::Generic => "generic",
    }
}

/// The longest wait for members to say something: they wait for frames where another reads none.
const STEP: Duration = Duration::from_millis(100);
/// How often it is looked whether an interface is still there.
const LOOK: Duration = Duration::from_secs(1);
