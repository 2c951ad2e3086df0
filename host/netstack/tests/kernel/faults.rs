//! Loss: an XDP program that drops a share of the packets that come to an interface.

use adverb_sys::bpf::{Attachment, Program, XdpMode};
use adverb_xdp::assembler::{Assembler, If, Reg};

/// Drops so many percent of what comes, as long as the attachment lives.
pub(crate) fn lose(interface: u32, percent: u32) -> Attachment {
    let mut asm = Assembler::default();
    let pass = (percent < 100).then(|| asm.label());
    if let Some(pass) = pass {
        let most = i32::try_from(u32::MAX / 100 * percent).expect("less than half, or all");
        asm.call(GET_PRANDOM_U32);
        asm.jump(If::NotLess, Reg(0), most, pass);
    }
    asm.set(Reg(0), XDP_DROP);
    asm.exit();
    if let Some(pass) = pass {
        asm.place(pass);
        asm.set(Reg(0), XDP_PASS);
        asm.exit();
    }
    let program = Program::load_xdp(&asm.finish()).expect("a program");
    Attachment::xdp(&program, interface, XdpMode::Native).expect("an interface")
}

const GET_PRANDOM_U32: i32 = 7;
const XDP_DROP: i32 = 1;
const XDP_PASS: i32 = 2;
