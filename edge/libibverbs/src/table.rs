//! Opening a device: the tables of functions that the header calls.

use crate::boxed::Plain;
use crate::context::{self, Inner};
use crate::descriptor::Descriptor;
use crate::errno::Answer;
use crate::{cq, memory, post, qp, query, srq, xrc};
use adverb_device::{Generation, Port};
use adverb_ibv::layout;
use std::os::fd::AsRawFd;

/// Opens a device.
pub(crate) fn open(device: *mut layout::Device, name: &str) -> Answer<*mut layout::Context> {
    let port = Port::open(name)?;
    let events = port.create_event_queue()?;
    port.monitor()?;
    let command = context::named_file(name)?;
    let async_fd = Descriptor::watching(events.watch())?;
    let mut verbs = layout::VerbsContext::zeroed();
    verbs.sz = size_of::<layout::VerbsContext>();
    verbs.query_port = Some(query::query_port);
    let table = &mut verbs.extensions;
    table.query_device_ex = Some(query::query_device_ex);
    table.query_rt_values = Some(query::query_rt_values);
    table.advise_mr = Some(memory::advise_mr);
    table.alloc_null_mr = Some(memory::alloc_null_mr);
    table.reg_dm_mr = Some(memory::reg_dm_mr);
    table.alloc_dm = Some(memory::alloc_dm);
    table.free_dm = Some(memory::free_dm);
    table.alloc_parent_domain = Some(memory::alloc_parent_domain);
    table.alloc_td = Some(memory::alloc_td);
    table.dealloc_td = Some(memory::dealloc_td);
    table.create_cq_ex = Some(cq::create_cq_ex);
    table.create_qp_ex = Some(qp::create_qp_ex);
    table.open_qp = Some(qp::open_qp);
    table.create_srq_ex = Some(srq::create_srq_ex);
    table.get_srq_num = Some(srq::get_srq_num);
    table.open_xrcd = Some(xrc::open_xrcd);
    table.close_xrcd = Some(xrc::close_xrcd);
    let context = &mut verbs.context;
    context.device = device;
    context.abi_compat = std::ptr::without_provenance_mut(usize::MAX);
    context.cmd_fd = command.as_raw_fd();
    context.async_fd = async_fd.number();
    context.num_comp_vectors = 1;
    let ops = &mut context.ops;
    ops.poll_cq = Some(cq::poll_cq);
    ops.req_notify_cq = Some(cq::req_notify_cq);
    ops.post_send = Some(post::post_send);
    ops.post_recv = Some(post::post_recv);
    ops.post_srq_recv = Some(post::post_srq_recv);
    ops.alloc_mw = Some(memory::alloc_mw);
    ops.bind_mw = Some(post::bind_mw);
    ops.dealloc_mw = Some(memory::dealloc_mw);
    Ok(context::give(
        verbs,
        Inner { generation: Generation::now(), port, events, async_fd, command },
    ))
}
