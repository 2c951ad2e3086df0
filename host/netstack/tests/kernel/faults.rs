//! Loss: an XDP program that drops a share of the packets that come to an interface.

use adverb_sys::bpf::{Attachment, Program, XdpMode};
use adverb_xdp::assembler::{Assembler, If, Label, Reg};

/// Drops so many percent of what comes, as long as the attachment lives.
pub(crate) fn lose(interface: u32, percent: u32) -> Attachment {
    // All numbers are below what has all bits.
    let bound = match percent {
        100 => -1,
        percent => i32::try_from(u32::MAX / 100 * percent).expect("less than half, or all"),
    };
    lose_by(interface, |asm, pass| {
        asm.call(GET_PRANDOM_U32);
        asm.jump(If::NotLess, Reg(0), bound, pass);
    })
}

/// Drops what these instructions do not have pass: they find what it is in the first register, as `struct xdp_md` has it.
pub(crate) fn lose_by(interface: u32, decide: impl FnOnce(&mut Assembler, Label)) -> Attachment {
    let mut asm = Assembler::default();
    let pass = asm.label();
    decide(&mut asm, pass);
    asm.set(Reg(0), XDP_DROP);
    asm.exit();
    asm.place(pass);
    asm.set(Reg(0), XDP_PASS);
    asm.exit();
    let program = Program::load_xdp(&asm.finish()).expect("a program");
    Attachment::xdp(&program, interface, XdpMode::Native).expect("an interface")
}

const GET_PRANDOM_U32: i32 = 7;
const XDP_DROP: i32 = 1;
const XDP_PASS: i32 = 2;
