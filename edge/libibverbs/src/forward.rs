//! What providers need of libibverbs: functions that are private to rdma-core, and go to the real library.
//!
//! Vendors' libraries (`libmlx5`, `libefa`) do not load without all of these, so the drop-in's `libibverbs.so.1` has every
//! name that rdma-core 44 to 65 has in a node `IBVERBS_PRIVATE_*`. The names have no version here, which the dynamic
//! linker accepts for every one; `ibverbs.map` has the nodes. Where there is no real library, there is no provider
//! either: functions answer `ENOSYS`, and constructors that register a provider register nothing.
//!
//! # Safety
//!
//! 1. A function here keeps all registers that arguments can be in, and the stack, and jumps to the function of the
//!    same name behind us. It reads an [`Entry`], whose first field is where that is.
//! 2. What [`find`] answers is a function: that of the real library, of this name, or [`missing`], [`missing_pointer`].

use crate::{errno, real};
use adverb_device::uncancelled;
use libc::c_void;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

/// A function behind us.
#[repr(C)]
struct Entry {
    /// Null until it is first called.
    found: AtomicPtr<c_void>,
    name: &'static str,
    /// What there is to call without it.
    otherwise: unsafe extern "C" fn() -> *mut c_void,
}

/// Functions of these names: what they are without a real library, and their names.
macro_rules! forward {
    ($otherwise:ident: $($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        unsafe extern "C" fn $name() {
            static ENTRY: Entry = Entry {
                found: AtomicPtr::new(std::ptr::null_mut()),
                name: stringify!($name),
                otherwise: $otherwise,
            };
            std::arch::naked_asm!(
                "lea r11, [rip + {entry}]",
                "mov r10, [r11]",
                "test r10, r10",
                "je {resolve}",
                "jmp r10",
                entry = sym ENTRY,
                resolve = sym resolve,
            )
        }
    )*};
}

/// Finds what the entry in `r11` is, and goes on there with the program's arguments.
#[unsafe(naked)]
unsafe extern "C" fn resolve() {
    std::arch::naked_asm!(
        "push rdi",
        "push rsi",
        "push rdx",
        "push rcx",
        "push r8",
        "push r9",
        "push rax",
        "sub rsp, 128",
        "movups [rsp], xmm0",
        "movups [rsp + 16], xmm1",
        "movups [rsp + 32], xmm2",
        "movups [rsp + 48], xmm3",
        "movups [rsp + 64], xmm4",
        "movups [rsp + 80], xmm5",
        "movups [rsp + 96], xmm6",
        "movups [rsp + 112], xmm7",
        "mov rdi, r11",
        "call {find}",
        "mov r10, rax",
        "movups xmm0, [rsp]",
        "movups xmm1, [rsp + 16]",
        "movups xmm2, [rsp + 32]",
        "movups xmm3, [rsp + 48]",
        "movups xmm4, [rsp + 64]",
        "movups xmm5, [rsp + 80]",
        "movups xmm6, [rsp + 96]",
        "movups xmm7, [rsp + 112]",
        "add rsp, 128",
        "pop rax",
        "pop r9",
        "pop r8",
        "pop rcx",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "jmp r10",
        find = sym find,
    )
}

/// Where an entry leads.
extern "C" fn find(entry: &Entry) -> *mut c_void {
    let found = uncancelled(|| std::panic::catch_unwind(|| real::find(entry.name, NODE)));
    let mut found = found.unwrap_or(std::ptr::null_mut());
    if found.is_null() {
        #[expect(clippy::as_conversions, reason = "a function has no other way to say where it is")]
        let otherwise = entry.otherwise as *const c_void;
        found = otherwise.cast_mut();
    }
    entry.found.store(found, Ordering::Release);
    found
}

/// A node that has them; others are found by name alone.
const NODE: &str = "IBVERBS_PRIVATE_34";

/// The answer without a real library, for functions that return an error number.
unsafe extern "C" fn missing() -> *mut c_void {
    std::ptr::without_provenance_mut(usize::try_from(libc::ENOSYS).unwrap_or(0))
}

/// The same for functions that return a pointer.
unsafe extern "C" fn missing_pointer() -> *mut c_void {
    errno::set(errno::Errno(libc::ENOSYS));
    std::ptr::null_mut()
}

forward! {
    missing_pointer:
    _verbs_init_and_alloc_context ibv_dmabuf_heap_alloc ibv_wr_opcode_str verbs_open_device
}

forward! {
    missing:
    __ioctl_final_num_attrs __verbs_log execute_ioctl ibv_cmd_advise_mr ibv_cmd_alloc_dm ibv_cmd_alloc_dmah
    ibv_cmd_alloc_mw ibv_cmd_alloc_pd ibv_cmd_attach_mcast ibv_cmd_close_xrcd ibv_cmd_create_ah
    ibv_cmd_create_comp_cntr ibv_cmd_create_counters ibv_cmd_create_cq ibv_cmd_create_cq_ex
    ibv_cmd_create_cq_ex2 ibv_cmd_create_flow ibv_cmd_create_flow_action_esp ibv_cmd_create_qp
    ibv_cmd_create_qp_ex ibv_cmd_create_qp_ex2 ibv_cmd_create_rwq_ind_table ibv_cmd_create_srq
    ibv_cmd_create_srq_ex ibv_cmd_create_wq ibv_cmd_dealloc_mw ibv_cmd_dealloc_pd ibv_cmd_dereg_mr
    ibv_cmd_destroy_ah ibv_cmd_destroy_comp_cntr ibv_cmd_destroy_counters ibv_cmd_destroy_cq
    ibv_cmd_destroy_flow ibv_cmd_destroy_flow_action ibv_cmd_destroy_qp ibv_cmd_destroy_rwq_ind_table
    ibv_cmd_destroy_srq ibv_cmd_destroy_wq ibv_cmd_detach_mcast ibv_cmd_export_dmabuf_fd ibv_cmd_free_dm
    ibv_cmd_free_dmah ibv_cmd_get_context ibv_cmd_inc_comp_cntr ibv_cmd_inc_err_comp_cntr ibv_cmd_modify_cq
    ibv_cmd_modify_flow_action_esp ibv_cmd_modify_qp ibv_cmd_modify_qp_ex ibv_cmd_modify_srq ibv_cmd_modify_wq
    ibv_cmd_open_qp ibv_cmd_open_xrcd ibv_cmd_poll_cq ibv_cmd_post_recv ibv_cmd_post_send
    ibv_cmd_post_srq_recv ibv_cmd_qp_attach_comp_cntr ibv_cmd_query_comp_cntr_caps ibv_cmd_query_context
    ibv_cmd_query_device_any ibv_cmd_query_mr ibv_cmd_query_port ibv_cmd_query_port_speed ibv_cmd_query_qp
    ibv_cmd_query_srq ibv_cmd_read_comp_cntr ibv_cmd_read_counters ibv_cmd_read_err_comp_cntr
    ibv_cmd_reg_dm_mr ibv_cmd_reg_dmabuf_mr ibv_cmd_reg_mr ibv_cmd_reg_mr_ex ibv_cmd_req_notify_cq
    ibv_cmd_rereg_mr ibv_cmd_resize_cq ibv_cmd_set_comp_cntr ibv_cmd_set_err_comp_cntr
    ibv_dmabuf_heap_cc_shared_init ibv_dmabuf_heap_destroy ibv_dmabuf_heap_free ibv_read_ibdev_sysfs_file
    verbs_init_cq verbs_register_driver_34 verbs_register_driver_57 verbs_register_driver_59
    verbs_register_driver_64 verbs_register_driver_65 verbs_set_ops verbs_uninit_context
}

/// Providers set it, and the real library reads it: one place for both.
#[unsafe(no_mangle)]
static verbs_allow_disassociate_destroy: AtomicBool = AtomicBool::new(false);
