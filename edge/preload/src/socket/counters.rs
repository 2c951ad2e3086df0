//! Counters of one socket. They lie in its socket, where others may look at them while the program runs.
//!
//! Not here: the file that sockets lie in, and reports of all sockets (`stats.rs`).

use std::mem::offset_of;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::base::raw;

/// What one socket has counted.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct Counters {
    pub(crate) rx_bytes: AtomicU64,
    pub(crate) rx_packets: AtomicU64,
    pub(crate) rx_os_bytes: AtomicU64,
    pub(crate) rx_os_packets: AtomicU64,
    pub(crate) rx_eagain: AtomicU64,
    pub(crate) rx_errors: AtomicU64,
    pub(crate) rx_poll_hit: AtomicU64,
    pub(crate) rx_poll_miss: AtomicU64,
    pub(crate) tx_bytes: AtomicU64,
    pub(crate) tx_packets: AtomicU64,
    pub(crate) tx_os_bytes: AtomicU64,
    pub(crate) tx_os_packets: AtomicU64,
    pub(crate) tx_eagain: AtomicU64,
    pub(crate) tx_errors: AtomicU64,
    /// Sends that went the way of one, and sent nothing.
    pub(crate) tx_dummies: AtomicU64,
    pub(crate) bells_rung: AtomicU64,
    /// The most that waited in shared memory when something was taken out.
    pub(crate) rx_waiting_bytes_max: AtomicU64,
    pub(crate) rx_waiting_packets_max: AtomicU64,
    /// What there was no room for, and how much there is room for; known when it is asked for.
    pub(crate) rx_dropped_bytes: AtomicU64,
    pub(crate) rx_dropped_packets: AtomicU64,
    pub(crate) rx_limit_bytes: AtomicU64,
    /// Connections that were reset because the peer had written nonsense to shared memory, or because they could not go
    /// back from there to the kernel without loss.
    pub(crate) rings_broken: AtomicU64,
    /// Sockets that are the kernel's because their process had as many by frames as it may.
    pub(crate) frames_refused: AtomicU64,
}

/// Whether a counter's value is a mark that it has left, or a limit, rather than a number of things.
fn is_mark(name: &str) -> bool {
    name.ends_with("_max") || name == "rx_limit_bytes"
}

/// Remembers `now` if it is more than ever. Returns whether it is.
#[inline]
pub(crate) fn rise(counter: &AtomicU64, now: usize) -> bool {
    let now = u64::try_from(now).unwrap_or(0);
    let is_more = now > counter.load(Ordering::Relaxed);
    if is_more {
        counter.store(now, Ordering::Relaxed);
    }
    is_more
}

/// Adds to a counter. Two threads that meet may lose a count, never more; that is what a plain
/// addition costs.
#[inline]
pub(crate) fn add(counter: &AtomicU64, count: usize) {
    let now = counter.load(Ordering::Relaxed);
    counter.store(now.wrapping_add(count.try_into().unwrap_or(0)), Ordering::Relaxed);
}

impl Counters {
    /// Where each lies, for the text in front of the file.
    pub(crate) const FIELDS: [(&'static str, usize); 23] = [
        ("rx_bytes", offset_of!(Self, rx_bytes)),
        ("rx_packets", offset_of!(Self, rx_packets)),
        ("rx_os_bytes", offset_of!(Self, rx_os_bytes)),
        ("rx_os_packets", offset_of!(Self, rx_os_packets)),
        ("rx_eagain", offset_of!(Self, rx_eagain)),
        ("rx_errors", offset_of!(Self, rx_errors)),
        ("rx_poll_hit", offset_of!(Self, rx_poll_hit)),
        ("rx_poll_miss", offset_of!(Self, rx_poll_miss)),
        ("tx_bytes", offset_of!(Self, tx_bytes)),
        ("tx_packets", offset_of!(Self, tx_packets)),
        ("tx_os_bytes", offset_of!(Self, tx_os_bytes)),
        ("tx_os_packets", offset_of!(Self, tx_os_packets)),
        ("tx_eagain", offset_of!(Self, tx_eagain)),
        ("tx_errors", offset_of!(Self, tx_errors)),
        ("tx_dummies", offset_of!(Self, tx_dummies)),
        ("bells_rung", offset_of!(Self, bells_rung)),
        ("rx_waiting_bytes_max", offset_of!(Self, rx_waiting_bytes_max)),
        ("rx_waiting_packets_max", offset_of!(Self, rx_waiting_packets_max)),
        ("rx_dropped_bytes", offset_of!(Self, rx_dropped_bytes)),
        ("rx_dropped_packets", offset_of!(Self, rx_dropped_packets)),
        ("rx_limit_bytes", offset_of!(Self, rx_limit_bytes)),
        ("rings_broken", offset_of!(Self, rings_broken)),
        ("frames_refused", offset_of!(Self, frames_refused)),
    ];

    fn all(&self) -> [&AtomicU64; 23] {
        [
            &self.rx_bytes,
            &self.rx_packets,
            &self.rx_os_bytes,
            &self.rx_os_packets,
            &self.rx_eagain,
            &self.rx_errors,
            &self.rx_poll_hit,
            &self.rx_poll_miss,
            &self.tx_bytes,
            &self.tx_packets,
            &self.tx_os_bytes,
            &self.tx_os_packets,
            &self.tx_eagain,
            &self.tx_errors,
            &self.tx_dummies,
            &self.bells_rung,
            &self.rx_waiting_bytes_max,
            &self.rx_waiting_packets_max,
            &self.rx_dropped_bytes,
            &self.rx_dropped_packets,
            &self.rx_limit_bytes,
            &self.rings_broken,
            &self.frames_refused,
        ]
    }

    /// Adds what another has counted; of marks the higher one stays.
    pub(crate) fn absorb(&self, other: &Self) {
        for ((name, _), (sum, count)) in
            Self::FIELDS.iter().zip(self.all().into_iter().zip(other.all()))
        {
            let count = count.load(Ordering::Relaxed);
            match is_mark(name) {
                true => sum.fetch_max(count, Ordering::Relaxed),
                false => sum.fetch_add(count, Ordering::Relaxed),
            };
        }
    }

    pub(crate) fn reset(&self) {
        for counter in self.all() {
            counter.store(0, Ordering::Relaxed);
        }
    }

    /// Remembers how much the kernel keeps for a socket.
    pub(crate) fn note_limit(&self, fd: i32) {
        let limit = raw::option::<i32>(fd, libc::SOL_SOCKET, libc::SO_RCVBUF).unwrap_or(0);
        self.rx_limit_bytes.store(u64::try_from(limit).unwrap_or(0), Ordering::Relaxed);
    }

    /// What the manual's file of statistics says about a socket when it closes.
    pub(crate) fn report(&self, fd: i32) -> String {
        let n = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let kib = |counter: &AtomicU64| n(counter) / 1024;
        let (hit, miss) = (n(&self.rx_poll_hit), n(&self.rx_poll_miss));
        let percent = |part: u64, all: u64| match all {
            0 => "0.00".to_owned(),
            all => {
                let hundredths = part.saturating_mul(10_000) / all;
                format!("{}.{:02}", hundredths / 100, hundredths % 100)
            }
        };
        let share = |lost: &AtomicU64, got: &AtomicU64| percent(n(lost), n(lost) + n(got));
        let lines = [
            format!(
                "Tx Offload: {} / {} / {} [kilobytes/packets/errors]",
                kib(&self.tx_bytes),
                n(&self.tx_packets),
                n(&self.tx_errors)
            ),
            format!(
                "Tx OS info: {} / {} / 0 [kilobytes/packets/errors]",
                kib(&self.tx_os_bytes),
                n(&self.tx_os_packets)
            ),
            format!(
                "Rx Offload: {} / {} / {} [kilobytes/packets/errors]",
                kib(&self.rx_bytes),
                n(&self.rx_packets),
                n(&self.rx_errors)
            ),
            format!(
                "Rx OS info: {} / {} / 0 [kilobytes/packets/errors]",
                kib(&self.rx_os_bytes),
                n(&self.rx_os_packets)
            ),
            format!(
                "Rx byte: max {} / dropped {} ({}%) / limit {}",
                n(&self.rx_waiting_bytes_max),
                n(&self.rx_dropped_bytes),
                share(&self.rx_dropped_bytes, &self.rx_bytes),
                n(&self.rx_limit_bytes)
            ),
            format!(
                "Rx pkt : max {} / dropped {} ({}%)",
                n(&self.rx_waiting_packets_max),
                n(&self.rx_dropped_packets),
                share(&self.rx_dropped_packets, &self.rx_packets)
            ),
            format!("Rx poll: {miss} / {hit} ({}%) [miss/hit]", percent(hit, hit + miss)),
            format!("Tx Dummy messages: {}", n(&self.tx_dummies)),
        ];
        lines.iter().map(|line| format!("VMA: [fd={fd}] {line}\n")).collect()
    }
}
