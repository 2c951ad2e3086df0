//! The device's traffic as a pcapng file, for tshark and its like.
//!
//! `ADVERB_PCAP=file` turns it on. Packets are written as they leave this process's sockets and as
//! they arrive there, with the IP and UDP headers that the network showed, or would have shown. A
//! file that another process is writing already is left alone: the process number comes before the
//! extension, by which other programs know what the file is.

use crate::sync::Mutex;
use adverb_sys::cancel::uncancelled;
use adverb_sys::clock;
use adverb_sys::lock::FileLock;
use adverb_wire::{Flow, Marks, ip, pcap};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

/// The environment variable that names the file.
pub(crate) const VARIABLE: &str = "ADVERB_PCAP";

/// A capture file that is being written.
#[derive(Debug)]
pub(crate) struct Capture {
    file: Mutex<Writer>,
}

#[derive(Debug)]
struct Writer {
    lock: FileLock,
    block: Vec<u8>,
}

impl Capture {
    /// Starts the file at `path`.
    pub(crate) fn start(path: &Path, interface: &str) -> io::Result<Self> {
        let lock = match FileLock::try_lock(open(path)?)? {
            Some(lock) => lock,
            None => FileLock::lock(open(&numbered(path))?)?,
        };
        lock.file().set_len(0)?;
        let mut block = Vec::new();
        pcap::section_header(&mut block);
        pcap::interface_description(interface, &mut block);
        let mut file = lock.file();
        file.write_all(&block)?;
        Ok(Self { file: Mutex::new(Writer { lock, block }) })
    }

    /// Adds a datagram. What the disk does not take is lost: a capture is an aid, not a service.
    pub(crate) fn packet(
        &self,
        (from, to): (SocketAddr, SocketAddr),
        id: u16,
        marks: Marks,
        datagram: &[u8],
    ) {
        let flow = match (from.ip(), to.ip()) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                Flow::v4(src.octets(), dst.octets(), from.port(), to.port())
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                Flow::v6(src.octets(), dst.octets(), from.port(), to.port())
            }
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => return,
        };
        let Ok(len) = u16::try_from(datagram.len()) else {
            return;
        };
        let headers = ip::emit_udp_headers(&flow, id, marks, len);
        let mut writer = self.file.lock();
        let Writer { lock, block } = &mut *writer;
        block.clear();
        pcap::enhanced_packet(0, clock::unix_ns(), &[headers.as_slice(), datagram], block);
        let _ = uncancelled(|| lock.file().write_all(block));
    }
}

fn open(path: &Path) -> io::Result<File> {
    File::options().create(true).truncate(false).write(true).open(path)
}

/// `trace.pcapng` becomes `trace.PID.pcapng`.
fn numbered(path: &Path) -> PathBuf {
    let mut extension = OsString::from(std::process::id().to_string());
    if let Some(known) = path.extension() {
        extension.push(".");
        extension.push(known);
    }
    path.with_extension(extension)
}
