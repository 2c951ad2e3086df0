//! Latencies: one request at a time, each timed.

use super::{Endpoint, Link};
use crate::args::Op;
use crate::bench::control::Watch;
use crate::bench::pace::Limit;
use crate::bench::stats::Samples;
use crate::failure::Failure;

impl<E: Endpoint> Link<E> {
    /// From the post of one request to its completion. The passive side absorbs.
    pub(crate) fn completion(
        &mut self,
        op: Op,
        bytes: usize,
        limit: Limit,
        watch: &mut Watch<'_>,
    ) -> Result<Samples, Failure> {
        limit.time_turns(watch, |watch| {
            self.post_one(op, bytes)?;
            while self.poll()?.requests == 0 {
                watch.peer_lives()?;
            }
            Ok(())
        })
    }

    /// A SEND there and a SEND back. The passive side echoes.
    pub(crate) fn send_round_trip(
        &mut self,
        bytes: usize,
        limit: Limit,
        watch: &mut Watch<'_>,
    ) -> Result<Samples, Failure> {
        let mut unfinished = 0;
        let samples = limit.time_turns(watch, |watch| {
            self.post_one(Op::Send, bytes)?;
            unfinished += 1;
            self.refill()?;
            loop {
                let reaped = self.take()?;
                unfinished -= reaped.requests;
                if reaped.receives > 0 {
                    return Ok(());
                }
                watch.peer_lives()?;
            }
        })?;
        self.finish(unfinished, watch)?;
        Ok(samples)
    }

    /// A WRITE there and a WRITE back, each noticed by its last byte, which counts. The passive side
    /// echoes; both have cleared the mark before it began.
    pub(crate) fn write_round_trip(
        &mut self,
        bytes: usize,
        limit: Limit,
        watch: &mut Watch<'_>,
    ) -> Result<Samples, Failure> {
        let mut rally = self.rally(bytes);
        let mut count = 0_u8;
        let samples = limit.time_turns(watch, |watch| {
            count = count.wrapping_add(1);
            self.write_back(count, bytes, &mut rally)?;
            while !self.has_landed(count, &mut rally)? {
                watch.peer_lives()?;
            }
            Ok(())
        })?;
        self.finish(rally.unfinished, watch)?;
        Ok(samples)
    }
}
