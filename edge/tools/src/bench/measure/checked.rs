//! Messages whose bytes are checked: what `adverb pingpong` does.

use std::time::Instant;

use super::{Endpoint, Link, Reaped};
use crate::args::Op;
use crate::bench::control::Watch;
use crate::bench::stats::Samples;
use crate::failure::Failure;

impl<E: Endpoint> Link<E> {
    /// Sends `iters` messages, no two alike, and compares what comes back byte for byte. The passive
    /// side echoes bytes. Only the time between post and arrival counts.
    ///
    /// # Errors
    ///
    /// [`Failure::Failed`] at the first byte that is wrong, with message, position and value.
    pub(crate) fn checked_round_trips(
        &mut self,
        bytes: usize,
        iters: u64,
        watch: &mut Watch<'_>,
    ) -> Result<Samples, Failure> {
        let mut samples = Samples::new();
        let mut content = vec![0; bytes];
        let mut returned = vec![0; bytes];
        let mut unfinished = 0;
        for message in 0..iters {
            fill(&mut content, message);
            self.endpoint.write(0, &content);
            // What is left of the message before must not pass for this one.
            returned.fill(0);
            self.endpoint.write(self.arrival(), &returned);
            let began = Instant::now();
            self.post_one(Op::Send, bytes)?;
            unfinished += 1;
            loop {
                let reaped = self.poll()?;
                unfinished -= reaped.requests;
                if reaped.receives > 0 {
                    break;
                }
                watch.peer_lives()?;
            }
            samples.record(began.elapsed());
            watch.busy();
            self.endpoint.read(self.arrival(), &mut returned);
            compare(&content, &returned, message)?;
        }
        self.finish(unfinished, watch)?;
        Ok(samples)
    }

    /// The passive side: sends back the bytes that have arrived.
    pub(super) fn echo_bytes(
        &mut self,
        bytes: usize,
        watch: &mut Watch<'_>,
    ) -> Result<(), Failure> {
        let mut content = vec![0; bytes];
        let mut unfinished = 0;
        loop {
            let reaped = self.poll()?;
            unfinished -= reaped.requests;
            for _ in 0..reaped.receives {
                self.endpoint.read(self.arrival(), &mut content);
                self.endpoint.write(0, &content);
                self.post_one(Op::Send, bytes)?;
                unfinished += 1;
            }
            if reaped != Reaped::default() {
                watch.busy();
            } else if watch.stop_asked()? {
                return self.finish(unfinished, watch);
            }
        }
    }
}

/// Bytes that depend on their position and on the message, so that a byte from another place or
/// another message is wrong.
fn fill(content: &mut [u8], message: u64) {
    let mut state = message.wrapping_mul(MULTIPLIER) | 1;
    for chunk in content.chunks_mut(8) {
        state = state.wrapping_mul(MULTIPLIER).wrapping_add(INCREMENT);
        let mixed = state ^ (state >> 29);
        for (byte, source) in chunk.iter_mut().zip(mixed.to_le_bytes()) {
            *byte = source;
        }
    }
}

/// Finds the first difference.
fn compare(sent: &[u8], returned: &[u8], message: u64) -> Result<(), Failure> {
    if sent == returned {
        return Ok(()); // The usual case, at the speed of memory.
    }
    let mut pairs = sent.iter().zip(returned).enumerate();
    match pairs.find(|(_, (sent, returned))| sent != returned) {
        Some((position, (sent, returned))) => Err(Failure::Failed(format!(
            "message {message}: byte {position} came back as {returned:#04x}, not {sent:#04x}"
        ))),
        None => Err(Failure::Failed(format!("message {message} came back with another length"))),
    }
}

/// Of a linear congruential generator with period 2⁶⁴ (Knuth).
const MULTIPLIER: u64 = 6_364_136_223_846_793_005;
/// The same.
const INCREMENT: u64 = 1_442_695_040_888_963_407;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_messages_and_no_two_positions_are_alike() {
        let message = |number| {
            let mut content = vec![0; 1000];
            fill(&mut content, number);
            content
        };
        let differing = |a: &[u8], b: &[u8]| a.iter().zip(b).filter(|(a, b)| a != b).count();
        let first = message(0);
        for number in 1..100 {
            assert!(differing(&first, &message(number)) > 900, "message {number}");
        }
        for shift in 1..100 {
            assert!(differing(&first, &first[shift..]) > 800, "shifted by {shift}");
        }
    }

    #[test]
    fn the_first_wrong_byte_is_named() {
        compare(b"abc", b"abc", 7).unwrap();
        let failure = compare(b"abc", b"aBC", 7).unwrap_err().to_string();
        assert_eq!(failure, "message 7: byte 1 came back as 0x42, not 0x62");
    }
}
