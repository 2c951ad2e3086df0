//! libibverbs for unmodified programs, on the software device: `LD_PRELOAD=libadverb_ibverbs.so`, or in the place of
//! `libibverbs.so.1`.
//!
//! Programs that are compiled against rdma-core's libibverbs find the software devices beside those of the real
//! library, which stays behind this one: what belongs to it goes there. Each function here checks pointers,
//! converts, calls the device and answers with an `errno`. What verbs mean is the device's affair; how C lays them
//! out is `adverb_ibv::layout`'s.
//!
//! | to change | see |
//! |---|---|
//! | how functions get names and versions, what is not ours | `export.rs`, `real.rs`, `ibverbs.map` |
//! | what providers need of the real library | `forward.rs` |
//! | which devices are listed | `device.rs` |
//! | contexts; tables of functions that the header calls | `context.rs`, `table.rs` |
//! | an object of C's and what is ours of it | `boxed.rs` |
//! | domains, regions, windows, device memory | `memory.rs`, `xrc.rs`; buffers, registration by attributes: `buffer.rs` |
//! | completions, channels, events | `cq.rs`, `events.rs` |
//! | queue pairs, shared receive queues, address handles | `qp.rs`, `srq.rs`, `ah.rs`, `way.rs` |
//! | XRC targets of other processes | `opened.rs`, `message.rs` |
//! | posting | `post.rs`; `ibv_wr_*`: `work.rs` |
//! | what devices and ports are like | `query.rs` |
//! | files that programs look at | `sysfs.rs`, `shared_tree.rs`, `files.rs` |
//! | libraries that do not find this one in front of the C library | `slots.rs` |
//! | programs that load libibverbs themselves | `loader.rs` |
//! | threads that are cancelled | `waiting.rs` |
//! | librdmacm, and what the kernel would tell it | `rdma_cm/` |
//! | the kernel's structures, as librdmacm has them turned | `marshal.rs` |
//! | all else that does not depend on a device | `words.rs` |
//!
//! # Safety
//!
//! Functions are called by programs under the contracts of the manual pages; `export.rs` has the rules.

#![expect(
    clippy::multiple_unsafe_ops_per_block,
    reason = "a field behind a pointer of C's takes two: its place, and the access"
)]

mod acknowledge;
mod ah;
mod boxed;
mod buffer;
mod context;
mod cq;
mod descriptor;
mod device;
mod errno;
mod events;
mod export;
mod files;
#[cfg(target_arch = "x86_64")]
mod forward;
mod loader;
mod marshal;
mod memory;
mod message;
mod opened;
mod post;
mod qp;
mod query;
mod rdma_cm;
mod real;
mod shared_tree;
mod slots;
mod srq;
mod sysfs;
mod table;
mod waiting;
mod way;
mod words;
mod work;
mod xrc;
