//! Proofs: by which a sender of another network namespace shows that its datagrams come here, before it is
//! entered as a sender (`across.rs`).
//!
//! An address means something in one namespace alone. So a sender says here which number it is about to send to the
//! owner's probe socket, and from which address; the owner says whether it has come from there.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use adverb_shm::alive;

use crate::base::address::ip_words;

/// Senders that may be about to show it at a time.
const PROOFS: usize = 16;

/// The proofs of one mailbox.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(crate) struct Proofs {
    /// Where probes from other namespaces go; 0 if it is not to be used from there.
    probe_port: AtomicU32,
    each: [Proof; PROOFS],
}

/// One sender that is about to show it.
#[derive(Debug, Default)]
#[repr(C, align(64))]
struct Proof {
    /// The process that does; 0 if none.
    owner: AtomicU32,
    /// What has come of it: nothing, [`ASKED`], or [`PROVED`].
    state: AtomicU32,
    secret: AtomicU64,
    /// Where it comes from.
    from: [AtomicU64; 2],
}

const ASKED: u32 = 1;
const PROVED: u32 = 2;

impl Proofs {
    /// The port of its owner's probe socket; 0 if it is not to be used from elsewhere.
    pub(crate) fn probe_port(&self) -> u16 {
        u16::try_from(self.probe_port.load(Ordering::Acquire)).unwrap_or(0)
    }

    pub(crate) fn set_probe_port(&self, port: u16) {
        self.probe_port.store(port.into(), Ordering::Release);
    }

    /// A sender is about to show that it reaches this socket from that address. Returns its place.
    pub(crate) fn ask(&self, secret: u64, from: IpAddr) -> Option<usize> {
        let mut proofs = self.each.iter().enumerate();
        let (place, proof) =
            proofs.find(|(_, proof)| alive::seize(&proof.owner, alive::has_ended))?;
        proof.state.store(0, Ordering::Relaxed);
        proof.secret.store(secret, Ordering::Relaxed);
        for (place, word) in proof.from.iter().zip(ip_words(from)) {
            place.store(word, Ordering::Relaxed);
        }
        proof.state.store(ASKED, Ordering::Release);
        Some(place)
    }

    fn proof(&self, place: usize, secret: u64) -> Option<&Proof> {
        let proof = self.each.get(place)?;
        (proof.secret.load(Ordering::Relaxed) == secret).then_some(proof)
    }

    pub(crate) fn is_proved(&self, place: usize, secret: u64) -> bool {
        let proof = self.proof(place, secret);
        proof.is_some_and(|proof| proof.state.load(Ordering::Acquire) == PROVED)
    }

    /// The sender has shown it, or does not want to any more.
    pub(crate) fn end_proof(&self, place: usize, secret: u64) {
        if let Some(proof) = self.proof(place, secret) {
            proof.state.store(0, Ordering::Relaxed);
            proof.secret.store(0, Ordering::Relaxed);
            proof.owner.store(0, Ordering::Release);
        }
    }

    /// Whether a sender waits for that.
    pub(crate) fn is_asked(&self) -> bool {
        self.each.iter().any(|proof| proof.state.load(Ordering::Acquire) == ASKED)
    }

    /// A probe has come, from that address.
    pub(crate) fn prove(&self, place: usize, secret: u64, from: IpAddr) {
        let Some(proof) = self.proof(place, secret).filter(|_| secret != 0) else { return };
        let [a, b] = &proof.from;
        if [a.load(Ordering::Relaxed), b.load(Ordering::Relaxed)] == ip_words(from) {
            let (o, r) = (Ordering::AcqRel, Ordering::Relaxed);
            let _ = proof.state.compare_exchange(ASKED, PROVED, o, r);
        }
    }
}
