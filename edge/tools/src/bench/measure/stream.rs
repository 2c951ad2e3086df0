//! Streams: many requests in flight at a time, to find bandwidths and rates.

use std::time::{Duration, Instant};

use super::{Endpoint, Layout, Link, Request, stride};
use crate::args::Op;
use crate::bench::control::Watch;
use crate::bench::pace::Limit;
use crate::failure::Failure;

/// How a stream of requests is posted.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Stream {
    /// What to do.
    pub(crate) op: Op,
    /// Message length.
    pub(crate) bytes: usize,
    /// Places that messages lie in, in turn; 1: all in the same.
    pub(crate) blocks: usize,
    /// Requests in flight, at most.
    pub(crate) depth: u32,
    /// Requests in one post.
    pub(crate) list: u32,
    /// Every so manyeth request is signaled. At most `depth - list + 1`, or a full queue would have
    /// no completion to wait for.
    pub(crate) signal_every: u32,
}

/// What a stream has come to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Streamed {
    /// Requests completed.
    pub(crate) messages: u64,
    /// From the first post to the last completion.
    pub(crate) elapsed: Duration,
}

impl<E: Endpoint> Link<E> {
    /// Keeps many requests in flight, and counts those that complete. The passive side absorbs.
    pub(crate) fn stream(
        &mut self,
        stream: Stream,
        limit: Limit,
        watch: &mut Watch<'_>,
    ) -> Result<Streamed, Failure> {
        self.stream_once(stream, limit.warm_up(), watch)?;
        self.stream_once(stream, limit, watch)
    }

    fn stream_once(
        &mut self,
        stream: Stream,
        limit: Limit,
        watch: &mut Watch<'_>,
    ) -> Result<Streamed, Failure> {
        let mut queue = Queue::new(stream, self.layout);
        let mut list = Vec::with_capacity(usize::try_from(stream.list).unwrap_or(1));
        let began = Instant::now();
        let mut pace = limit.start();
        let mut going = true;
        loop {
            // Ends on a signaled request, or the last ones would go uncounted.
            while queue.has_room() && (going || !queue.at_signal()) {
                queue.fill(&mut list, if going { stream.list } else { 1 });
                self.endpoint.post(&list)?;
                going = going && limit.iters.is_none_or(|iters| queue.posted < iters);
            }
            let retired = queue.retire(self.poll()?.requests);
            if retired > 0 {
                watch.busy();
                let now = Instant::now();
                going = going && pace.go_on(retired, now);
                if !going && queue.is_empty() {
                    return Ok(Streamed { messages: queue.posted, elapsed: now - began });
                }
            } else {
                watch.peer_lives()?;
            }
        }
    }
}

/// The send queue as a stream sees it: what is in flight, and what comes next.
#[derive(Debug)]
struct Queue {
    stream: Stream,
    remote: usize,
    stride: usize,
    block: usize,
    posted: u64,
    in_flight: u32,
    unsignaled: u32,
}

impl Queue {
    fn new(stream: Stream, layout: Layout) -> Self {
        let remote = match stream.op {
            Op::Send | Op::Write => layout.half_bytes,
            Op::Read => 0,
        };
        let stride = stride(stream.bytes);
        Self { stream, remote, stride, block: 0, posted: 0, in_flight: 0, unsignaled: 0 }
    }

    /// Whether another list may be posted.
    fn has_room(&self) -> bool {
        self.in_flight + self.stream.list <= self.stream.depth
    }

    /// Whether the request posted last is signaled.
    fn at_signal(&self) -> bool {
        self.unsignaled == 0
    }

    fn is_empty(&self) -> bool {
        self.in_flight == 0
    }

    /// Prepares the next requests to post, and counts them as posted.
    #[inline]
    fn fill(&mut self, list: &mut Vec<Request>, count: u32) {
        list.clear();
        for _ in 0..count {
            self.unsignaled += 1;
            let signaled = self.unsignaled == self.stream.signal_every;
            if signaled {
                self.unsignaled = 0;
            }
            let local = self.block * self.stride;
            let remote = self.remote + local;
            let (op, bytes) = (self.stream.op, self.stream.bytes);
            list.push(Request { op, local, remote, bytes, signaled });
            self.block += 1;
            if self.block >= self.stream.blocks {
                self.block = 0;
            }
        }
        self.posted += u64::from(count);
        self.in_flight += count;
    }

    /// Each completion retires its request and the unsignaled ones before it. Returns how many.
    #[inline]
    fn retire(&mut self, completions: u32) -> u64 {
        let retired = completions * self.stream.signal_every;
        self.in_flight -= retired;
        u64::from(retired)
    }
}
