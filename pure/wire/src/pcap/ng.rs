//! The pcapng capture format, written.
//!
//! A file is a section header, then a description of each interface, then packets, each a block:
//!
//! ```text
//!     type | length of the block | ... | length of the block
//! ```
//!
//! Numbers are little-endian, times are nanoseconds since 1970, and packets start with their IP
//! header, because there is no link below.

use alloc::vec::Vec;

/// Appends the section header, which starts a file.
pub fn section_header(out: &mut Vec<u8>) {
    block(SECTION_HEADER, out, |body| {
        body.extend_from_slice(&BYTE_ORDER.to_le_bytes());
        body.extend_from_slice(&1_u16.to_le_bytes()); // Version 1.0.
        body.extend_from_slice(&0_u16.to_le_bytes());
        body.extend_from_slice(&u64::MAX.to_le_bytes()); // The section's length is not known yet.
    });
}

/// Appends the description of an interface. They are numbered from 0 in the order of the file.
///
/// The name is cut to 255 bytes.
pub fn interface_description(name: &str, out: &mut Vec<u8>) {
    let name = name.get(..name.floor_char_boundary(NAME_MAX)).unwrap_or_default();
    block(INTERFACE_DESCRIPTION, out, |body| {
        body.extend_from_slice(&LINK_RAW.to_le_bytes());
        body.extend_from_slice(&0_u16.to_le_bytes());
        body.extend_from_slice(&0_u32.to_le_bytes()); // Packets are kept whole.
        option(OPTION_NAME, name.as_bytes(), body);
        option(OPTION_TIME_UNIT, &[NANOSECONDS], body);
        option(OPTION_END, &[], body);
    });
}

/// Appends a packet that interface `interface` carried at `time_ns`, nanoseconds since 1970. The
/// packet's `parts` are joined.
///
/// # Panics
///
/// If the parts are longer than 4 GiB together.
pub fn enhanced_packet(interface: u32, time_ns: u64, parts: &[&[u8]], out: &mut Vec<u8>) {
    let len: usize = parts.iter().map(|part| part.len()).sum();
    let len = u32::try_from(len).expect("a packet is shorter than 4 GiB").to_le_bytes();
    let [t0, t1, t2, t3, t4, t5, t6, t7] = time_ns.to_le_bytes();
    block(ENHANCED_PACKET, out, |body| {
        body.extend_from_slice(&interface.to_le_bytes());
        body.extend_from_slice(&[t4, t5, t6, t7, t0, t1, t2, t3]); // Upper half first.
        body.extend_from_slice(&len); // As captured, and as it was.
        body.extend_from_slice(&len);
        for part in parts {
            body.extend_from_slice(part);
        }
    });
}

/// Appends a block of type `kind` around what `fill` appends, which is padded.
fn block(kind: u32, out: &mut Vec<u8>, fill: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&kind.to_le_bytes());
    out.extend_from_slice(&[0; 4]); // The length, known only later.
    fill(out);
    let body = out.len() - start;
    out.resize(start + body.next_multiple_of(4), 0);
    let len = u32::try_from(out.len() - start + 4).expect("a block is shorter than 4 GiB");
    out.extend_from_slice(&len.to_le_bytes());
    if let Some(slot) = out.get_mut(start + 4..).and_then(|body| body.first_chunk_mut()) {
        *slot = len.to_le_bytes();
    }
}

/// Appends one option, padded. Values are short.
fn option(code: u16, value: &[u8], out: &mut Vec<u8>) {
    let len = u16::try_from(value.len()).expect("an option is shorter than 64 KiB");
    out.extend_from_slice(&code.to_le_bytes());
    out.extend_from_slice(&len.to_le_bytes());
    out.extend_from_slice(value);
    let padding = value.len().next_multiple_of(4) - value.len();
    out.resize(out.len() + padding, 0);
}

const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const BYTE_ORDER: u32 = 0x1a2b_3c4d;
const INTERFACE_DESCRIPTION: u32 = 1;
const ENHANCED_PACKET: u32 = 6;
const LINK_RAW: u16 = 101;
const OPTION_END: u16 = 0;
const OPTION_NAME: u16 = 2;
const OPTION_TIME_UNIT: u16 = 9;
const NANOSECONDS: u8 = 9;
const NAME_MAX: usize = 255;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_as_the_format_says() {
        let mut file = Vec::new();
        section_header(&mut file);
        interface_description("lo", &mut file);
        enhanced_packet(0, 0x0102_0304_0506_0708, &[&[0x45, 1], &[], &[2]], &mut file);
        #[rustfmt::skip]
        let expected = [
            0x0a, 0x0d, 0x0d, 0x0a, 28, 0, 0, 0, 0x4d, 0x3c, 0x2b, 0x1a, 1, 0, 0, 0,
            0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 28, 0, 0, 0,

            1, 0, 0, 0, 40, 0, 0, 0, 101, 0, 0, 0, 0, 0, 0, 0,
            2, 0, 2, 0, b'l', b'o', 0, 0, 9, 0, 1, 0, 9, 0, 0, 0, 0, 0, 0, 0, 40, 0, 0, 0,

            6, 0, 0, 0, 36, 0, 0, 0, 0, 0, 0, 0, 4, 3, 2, 1, 8, 7, 6, 5,
            3, 0, 0, 0, 3, 0, 0, 0, 0x45, 1, 2, 0, 36, 0, 0, 0,
        ];
        assert_eq!(file, expected);
    }

    #[test]
    fn every_block_has_its_length_at_both_ends() {
        for len in 0..40 {
            let mut file = Vec::new();
            interface_description(&"ä".repeat(len * 10), &mut file);
            let described = file.len();
            enhanced_packet(1, 0, &[&[7; 40][..len]], &mut file);
            for block in [&file[..described], &file[described..]] {
                let expected = u32::try_from(block.len()).unwrap().to_le_bytes();
                assert_eq!(block[4..8], expected);
                assert_eq!(block[block.len() - 4..], expected);
                assert!(block.len().is_multiple_of(4));
            }
        }
    }
}
