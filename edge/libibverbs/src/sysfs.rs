//! What the kernel would show of software devices in `/sys/class/infiniband`, `/sys/class/infiniband_verbs` and
//! `/dev/infiniband`: a tree of a few files that is made for a set of devices, and where in it a path leads. Before a program
//! is shown what can change, addresses for instance, the devices are looked at again, and another tree takes its place if need be.
//!
//! The tree is in `/dev/shm`, or where `TMPDIR` says, under a name that its contents determine; processes of one user
//! share it (`shared_tree.rs`). Without it programs that look there find nothing, as before.

use adverb_device::locks::Mutex;
use adverb_device::{Device, PerProcess, Port, devices};
use adverb_ibv::layout::value::PORT_CM_SUP;
use std::collections::BTreeMap;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::shared_tree::SharedTree;

/// Where the kernel has them, and where they are in the tree. The longest comes first.
const PREFIXES: [(&str, &str); 3] = [
    ("/sys/class/infiniband_verbs", "class/infiniband_verbs"),
    ("/sys/class/infiniband", "class/infiniband"),
    ("/dev/infiniband", "dev/infiniband"),
];

/// What the name of a device's file begins with.
pub(crate) const DEV_PREFIX: &str = "uverbs_";

/// The path may be one that is redirected: cheap, for every file that a program opens.
pub(crate) fn concerns(path: &[u8]) -> bool {
    path.starts_with(b"/sys/class/infiniband") || path.starts_with(b"/dev/infiniband")
}

/// Where a file of a software device is in truth; `None` for all others.
///
/// What belongs to a device of the kernel stays; of directories that both have, ours is shown where the kernel has
/// none.
pub(crate) fn redirected(path: &str) -> Option<String> {
    if !concerns(path.as_bytes()) {
        return None;
    }
    let (rest, place) = PREFIXES.iter().find_map(|(prefix, place)| {
        let rest = path.strip_prefix(prefix)?;
        (rest.is_empty() || rest.starts_with('/')).then_some((rest, place))
    })?;
    let rest = rest.trim_matches('/');
    let first = rest.split('/').next().unwrap_or_default();
    let device = first.strip_prefix(DEV_PREFIX).unwrap_or(first);
    let changes = rest.split('/').nth(1) == Some("ports");
    let tree = tree(|known| changes || first.is_empty() || !known.has(device))?;
    let inside = tree.shared.root.join(place).join(rest);
    let ours = match first {
        "" => !tree.is_beside_kernel,
        _ => tree.has(device),
    };
    if ours { inside.to_str().map(str::to_owned) } else { None }
}

struct Tree {
    shared: SharedTree,
    devices: Vec<Device>,
    /// The kernel has devices of its own.
    is_beside_kernel: bool,
}

impl Tree {
    fn has(&self, device: &str) -> bool {
        self.devices.iter().any(|own| own.name == device)
    }
}

/// The tree of this process, once one was to be made; `None` in it if that failed.
static TREE: PerProcess<Mutex<Option<Option<Arc<Tree>>>>> = PerProcess::new();

/// The tree, which is brought up to date if it is `old`.
fn tree(old: impl Fn(&Tree) -> bool) -> Option<Arc<Tree>> {
    thread_local! {
        /// Making the tree opens files, which is redirected, which needs the tree.
        static BUSY: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
    }
    if BUSY.replace(true) {
        return None;
    }
    let mut kept = TREE.get().lock();
    let tree = match kept.take() {
        None => now().and_then(made).ok(),
        Some(Some(tree)) if old(&tree) => Some(renewed(tree)),
        Some(known) => known,
    };
    *kept = Some(tree.clone());
    drop(kept);
    BUSY.set(false);
    tree
}

/// The tree of the devices as they are now, or this one, if that cannot be made.
fn renewed(tree: Arc<Tree>) -> Arc<Tree> {
    match now() {
        Ok(devices) if devices != tree.devices => made(devices).unwrap_or(tree),
        Ok(_) | Err(_) => tree,
    }
}

/// The devices. Of those that this process has open, addresses are at the places that its queries name.
fn now() -> io::Result<Vec<Device>> {
    let with_places = |mut device: Device| {
        if let Some(gids) = Port::gids_of_open(&device.name) {
            device.gids = gids;
        }
        device
    };
    Ok(devices()?.into_iter().map(with_places).collect())
}

fn made(devices: Vec<Device>) -> io::Result<Arc<Tree>> {
    let files = files(&devices);
    let mut hasher = DefaultHasher::new();
    files.hash(&mut hasher);
    let base = std::env::var_os("TMPDIR").map_or_else(|| PathBuf::from("/dev/shm"), PathBuf::from);
    let name = format!("{:016x}", hasher.finish());
    let shared = SharedTree::open(&base, &name, |root| fill(root, &devices, &files))?;
    let is_beside_kernel = Path::new("/sys/class/infiniband").is_dir();
    Ok(Arc::new(Tree { shared, devices, is_beside_kernel }))
}

/// The files of the tree, with what is in them.
fn files(devices: &[Device]) -> BTreeMap<String, String> {
    let mut files = BTreeMap::new();
    for device in devices {
        let name = &device.name;
        let mut put = |path: String, text: String| files.insert(path, format!("{text}\n"));
        let class = format!("class/infiniband/{name}");
        let guid = device.guid.to_be_bytes();
        let guid: Vec<_> = guid
            .chunks(2)
            .map(|pair| pair.iter().map(|b| format!("{b:02x}")).collect::<String>())
            .collect();
        put(format!("{class}/node_type"), "1: CA".to_owned());
        put(format!("{class}/node_guid"), guid.join(":"));
        put(format!("{class}/sys_image_guid"), guid.join(":"));
        put(format!("{class}/node_desc"), name.clone());
        put(format!("{class}/fw_ver"), env!("CARGO_PKG_VERSION").to_owned());
        put(format!("{class}/device/net/{}/ifindex", device.interface), device.index.to_string());
        put(format!("{class}/device/numa_node"), "-1".to_owned());
        let port = format!("{class}/ports/1");
        let (state, phys_state) = match device.active {
            true => ("4: ACTIVE", "5: LinkUp"),
            false => ("1: DOWN", "3: Disabled"),
        };
        put(format!("{port}/state"), state.to_owned());
        put(format!("{port}/phys_state"), phys_state.to_owned());
        put(format!("{port}/link_layer"), "Ethernet".to_owned());
        put(format!("{port}/rate"), "40 Gb/sec (4X QDR)".to_owned());
        put(format!("{port}/pkeys/0"), "0xffff".to_owned());
        // What InfiniBand's subnet manager would assign.
        for (file, text) in
            [("lid", "0x0"), ("lid_mask_count", "0"), ("sm_lid", "0x0"), ("sm_sl", "0")]
        {
            put(format!("{port}/{file}"), text.to_owned());
        }
        put(format!("{port}/cap_mask"), format!("{PORT_CM_SUP:#010x}"));
        for entry in &device.gids {
            let index = entry.index;
            let gid: Vec<_> = entry
                .gid
                .0
                .chunks(2)
                .map(|pair| pair.iter().map(|b| format!("{b:02x}")).collect::<String>())
                .collect();
            put(format!("{port}/gids/{index}"), gid.join(":"));
            put(format!("{port}/gid_attrs/types/{index}"), "RoCE v2".to_owned());
            put(format!("{port}/gid_attrs/ndevs/{index}"), device.interface.clone());
        }
        let verbs = format!("class/infiniband_verbs/{DEV_PREFIX}{name}");
        put(format!("{verbs}/ibdev"), name.clone());
        put(format!("{verbs}/abi_version"), "1".to_owned());
    }
    files
}

fn fill(root: &Path, devices: &[Device], files: &BTreeMap<String, String>) -> io::Result<()> {
    for (path, text) in files {
        let path = root.join(path);
        if let Some(directory) = path.parent() {
            fs::create_dir_all(directory)?;
        }
        fs::write(path, text)?;
    }
    let nodes = root.join("dev/infiniband");
    fs::create_dir_all(&nodes)?;
    for device in devices {
        // A character device that all users may open.
        symlink("/dev/null", nodes.join(format!("{DEV_PREFIX}{}", device.name)))?;
    }
    Ok(())
}
