//! libibverbs of the system, opened at run time: the way to RDMA hardware and to the kernel's drivers.
//!
//! Nothing links against it. Where it is missing there are no such devices, and that is no error. What
//! a program may do with a device is the concern of the crates above; here C's objects become values
//! that end in the right order, and its return codes become errors.
//!
//! | to change | see |
//! |---|---|
//! | what a structure looks like | `layout.rs`, extended interfaces: `layout/extended.rs`, the kernel's: `layout/kernel.rs`, numbers: `layout/value.rs` |
//! | which library is opened, which functions of it are used | `library.rs` |
//! | devices and contexts, events | `context.rs` |
//! | commands of the kernel's connection manager, as librdmacm writes them | `rdma_cm.rs`, its answers: `rdma_cm/answer.rs` |
//! | memory, queues, queue pairs, address handles | `object.rs` |

mod context;
pub mod layout;
mod library;
mod object;
pub mod rdma_cm;

pub use context::{Affected, Context, Event, Found, devices};
pub use library::VARIABLE;
pub use object::{Ah, Channel, Cq, Dead, Mr, Pd, Qp, QpMakings, Srq};
