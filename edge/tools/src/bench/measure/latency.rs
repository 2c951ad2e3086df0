//! Latencies: one request at a time, each timed.

use std::time::Instant;

use super::{Endpoint, Link};
use crate::args::Op;
use crate::bench::control::Watch;
use crate::bench::pace::{Limit, Pace};
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
        let mut turn = |link: &mut Self, watch: &mut Watch<'_>| {
            link.post_one(op, bytes)?;
            while link.poll()?.requests == 0 {
                watch.peer_lives()?;
            }
            Ok(())
        };
        self.timed(limit.warm_up().start(), watch, &mut turn)?;
        self.timed(limit.start(), watch, &mut turn)
    }

    /// A SEND there and a SEND back. The passive side echoes.
    pub(crate) fn send_round_trip(
        &mut self,
        bytes: usize,
        limit: Limit,
        watch: &mut Watch<'_>,
    ) -> Result<Samples, Failure> {
        let mut unfinished = 0;
        let mut turn = |link: &mut Self, watch: &mut Watch<'_>| {
            link.post_one(Op::Send, bytes)?;
            unfinished += 1;
            loop {
                let reaped = link.poll()?;
                unfinished -= reaped.requests;
                if reaped.receives > 0 {
                    return Ok(());
                }
                watch.peer_lives()?;
            }
        };
        self.timed(limit.warm_up().start(), watch, &mut turn)?;
        let samples = self.timed(limit.start(), watch, &mut turn)?;
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
        let (mark, last) = (self.mark(bytes), bytes.saturating_sub(1));
        let mut count = 0_u8;
        let mut unfinished = 0;
        let mut turn = |link: &mut Self, watch: &mut Watch<'_>| {
            count = count.wrapping_add(1);
            link.endpoint.store(last, count);
            link.post_one(Op::Write, bytes)?;
            unfinished += 1;
            loop {
                unfinished -= link.poll()?.requests;
                if link.endpoint.load(mark) == count {
                    return Ok(());
                }
                watch.peer_lives()?;
            }
        };
        self.timed(limit.warm_up().start(), watch, &mut turn)?;
        let samples = self.timed(limit.start(), watch, &mut turn)?;
        self.finish(unfinished, watch)?;
        Ok(samples)
    }

    /// Takes turns until `pace` says it is enough, and times each from the end of the one before.
    #[inline]
    fn timed(
        &mut self,
        mut pace: Pace,
        watch: &mut Watch<'_>,
        turn: &mut impl FnMut(&mut Self, &mut Watch<'_>) -> Result<(), Failure>,
    ) -> Result<Samples, Failure> {
        let mut samples = Samples::new();
        let mut began = Instant::now();
        loop {
            turn(self, watch)?;
            watch.busy();
            let now = Instant::now();
            samples.record(now.duration_since(began));
            began = now;
            if !pace.go_on(1, now) {
                return Ok(samples);
            }
        }
    }
}
