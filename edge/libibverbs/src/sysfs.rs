//! What the kernel would show of software devices in `/sys/class/infiniband`, `/sys/class/infiniband_verbs` and
//! `/dev/infiniband`: a tree of a few files that is made once for a set of devices, and where in it a path leads.
//!
//! The tree is in `/dev/shm`, or where `TMPDIR` says, under a name that its contents determine; processes of one user
//! share it (`shared_tree.rs`). Without it programs that look there find nothing, as before.

use adverb_device::{Device, devices};
use std::collections::BTreeMap;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::device::DEV_PREFIX;
use crate::query::PORT_CM_SUP;
use crate::shared_tree::SharedTree;

/// Where the kernel has them, and where they are in the tree. The longest comes first.
const PREFIXES: [(&str, &str); 3] = [
    ("/sys/class/infiniband_verbs", "class/infiniband_verbs"),
    ("/sys/class/infiniband", "class/infiniband"),
    ("/dev/infiniband", "dev/infiniband"),
];

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
    let tree = tree()?;
    let first = rest.split('/').next().unwrap_or_default();
    let inside = tree.shared.root.join(place).join(rest);
    let ours = match first {
        "" => !tree.is_beside_kernel,
        name => tree.names.iter().any(|own| own == name.strip_prefix(DEV_PREFIX).unwrap_or(name)),
    };
    if ours { inside.to_str().map(str::to_owned) } else { None }
}

struct Tree {
    shared: SharedTree,
    names: Vec<String>,
    /// The kernel has devices of its own.
    is_beside_kernel: bool,
}

fn tree() -> Option<&'static Tree> {
    static TREE: OnceLock<Option<Tree>> = OnceLock::new();
    thread_local! {
        /// Making the tree opens files, which is redirected, which needs the tree.
        static BUSY: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
    }
    if BUSY.replace(true) {
        return None;
    }
    let tree = TREE.get_or_init(|| make().ok());
    BUSY.set(false);
    tree.as_ref()
}

fn make() -> io::Result<Tree> {
    let all = devices()?;
    let files = files(&all);
    let mut hasher = DefaultHasher::new();
    files.hash(&mut hasher);
    let base = std::env::var_os("TMPDIR").map_or_else(|| PathBuf::from("/dev/shm"), PathBuf::from);
    let name = format!("{:016x}", hasher.finish());
    let shared = SharedTree::open(&base, &name, |root| fill(root, &all, &files))?;
    let is_beside_kernel = Path::new("/sys/class/infiniband").is_dir();
    let names = all.into_iter().map(|device| device.name).collect();
    Ok(Tree { shared, names, is_beside_kernel })
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
        put(format!("{port}/state"), "4: ACTIVE".to_owned());
        put(format!("{port}/phys_state"), "5: LinkUp".to_owned());
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
