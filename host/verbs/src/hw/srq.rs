//! Shared receive queues of hardware.
//!
//! # Safety
//!
//! What is posted is the caller's promise: see `srq.rs` of the crate. The device checks keys and
//! ranges.

use super::cq::{Book, Entry, Stock, wr_id};
use super::qp::{as_c, refusal, total_len};
use super::{Domain, Port};
use adverb_device::locks::Mutex;
use adverb_device::{PostError, ReceiveWork, SrqAttr, SrqError, WcOpcode};
use adverb_ibv::layout::{self, value};
use std::io;
use std::sync::Arc;

/// A shared receive queue.
#[derive(Debug)]
pub(crate) struct Srq {
    raw: Arc<adverb_ibv::Srq>,
    port: Arc<Port>,
    number: u32,
    book: Arc<Book>,
    /// What it holds, and pieces of each.
    max: Mutex<(u32, u32)>,
}

impl Srq {
    pub(crate) fn new(
        domain: &Domain,
        max_wr: u32,
        max_sge: u32,
        context: u64,
    ) -> io::Result<Self> {
        let port = domain.port();
        let number = port.name(context);
        let attr = layout::SrqAttr { max_wr, max_sge, srq_limit: 0 };
        let made = domain.pd().and_then(|pd| adverb_ibv::Srq::new(pd, number.into(), attr));
        let (raw, _) = made.inspect_err(|_| port.forget(number))?;
        let mut stock = Stock::default();
        stock.grow(max_wr);
        Ok(Self {
            raw: Arc::new(raw),
            port: Arc::clone(port),
            number,
            book: Arc::new(Book::Shared(number, Mutex::new(stock))),
            max: Mutex::new((max_wr, max_sge)),
        })
    }

    pub(crate) fn raw(&self) -> &Arc<adverb_ibv::Srq> {
        &self.raw
    }

    pub(crate) fn book(&self) -> &Arc<Book> {
        &self.book
    }

    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    fn stock(&self) -> Option<&Mutex<Stock>> {
        match &*self.book {
            Book::Shared(_, stock) => Some(stock),
            Book::Sends(_) | Book::Receives(_) => None,
        }
    }

    pub(crate) fn query(&self) -> SrqAttr {
        let (max_wr, max_sge) = *self.max.lock();
        SrqAttr {
            max_wr,
            max_sge,
            srq_limit: self.raw.query().map_or(0, |attr| attr.srq_limit),
            posted: self.stock().map_or(0, |stock| stock.lock().used()),
        }
    }

    pub(crate) fn arm_limit(&self, limit: u32) -> Result<(), SrqError> {
        let (max, _) = *self.max.lock();
        let attr = layout::SrqAttr { srq_limit: limit, ..layout::SrqAttr::default() };
        let error = SrqError::Limit { asked: limit, max };
        if limit > max || self.raw.modify(attr, value::SRQ_LIMIT).is_err() {
            return Err(error);
        }
        Ok(())
    }

    pub(crate) fn resize(&self, max_wr: u32) -> Result<(), SrqError> {
        let (asked, max) = (max_wr, self.port.attr().max_qp_wr);
        if !(1..=max).contains(&max_wr) {
            return Err(SrqError::OutOfRange { asked, max });
        }
        let mut known = self.max.lock();
        let used = self.stock().map_or(0, |stock| stock.lock().used());
        let attr = layout::SrqAttr { max_wr, ..layout::SrqAttr::default() };
        if used > max_wr || self.raw.modify(attr, value::SRQ_MAX_WR).is_err() {
            return Err(SrqError::InUse { asked, used });
        }
        known.0 = max_wr;
        if let Some(stock) = self.stock() {
            stock.lock().grow(max_wr);
        }
        Ok(())
    }

    /// Posts receives, in order.
    #[inline(never)] // Keeps the software device's way short, which shares a match with it.
    pub(crate) fn post_receive(&self, batch: &[ReceiveWork<'_>]) -> Result<(), (usize, PostError)> {
        let (capacity, max) = *self.max.lock();
        let max = usize::try_from(max).unwrap_or(0);
        let capacity = u64::from(capacity);
        for (at, work) in batch.iter().enumerate() {
            let failed = |error| Err((at, error));
            let count = work.sges.len();
            if count > max {
                return failed(PostError::TooManySges { count, max });
            }
            let Some(len) = total_len(work.sges) else {
                return failed(PostError::TooLong);
            };
            let (wr, buffer, opcode) = (work.wr_id, work.buffer, WcOpcode::Receive);
            let entry = Entry { wr_id: wr, buffer, opcode, len, ah: None };
            let full = PostError::QueueFull { capacity };
            let Some(mut stock) = self.stock().map(Mutex::lock) else {
                return failed(full);
            };
            let room = u64::from(stock.used()) < capacity;
            let Some(number) = room.then(|| stock.put(entry)).flatten() else {
                return failed(full);
            };
            // SAFETY: the caller's promise.
            let posted = unsafe { self.raw.post(wr_id(self.number, number), as_c(work.sges)) };
            if let Err(error) = posted {
                stock.end(number);
                return failed(refusal(&error, capacity));
            }
        }
        Ok(())
    }
}

impl Drop for Srq {
    fn drop(&mut self) {
        self.port.forget(self.number);
    }
}
