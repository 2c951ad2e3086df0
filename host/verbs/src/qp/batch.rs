//! Batches: several requests in one post; they leave together, and locks are taken once.

use super::{Chain, Qp};
use crate::cq::Link;
use crate::error::Rejected;
use crate::memory::Memory;
use crate::provider;
use crate::transport::{Supports, Transport};
use crate::work::{Kind, Work};
use adverb_device::{BufferNumber, PostError, SendData, SendKind, SendWork, Sge};

/// Requests that go to the device at once. As many as it sends in one burst of short packets.
const BATCH: usize = 32;

impl<T: Transport> Qp<T> {
    /// Posts work that owns its memory, in this order; requests that are posted together leave together. The
    /// memory comes back with the completions. IBTA Vol. 1 §11.4.1.1.
    ///
    /// ```
    /// # use adverb_verbs::{Pd, Qp, Rc, Work};
    /// # fn with(qp: &Qp<Rc>, pd: &Pd) -> Result<(), Box<dyn std::error::Error>> {
    /// let messages = (0..32).map(|_| pd.buffer(64)).collect::<Result<Vec<_>, _>>()?;
    /// qp.post_all(messages.into_iter().map(Work::send))?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Rejected`] says which one was refused, and has its memory and that of all work behind it. What was
    /// before it is posted.
    #[doc(alias = "ibv_post_send")]
    #[doc(alias = "ibv_post_recv")]
    pub fn post_all<O>(&self, works: impl IntoIterator<Item = Work<O>>) -> Result<(), Rejected>
    where
        T: Supports<O>,
    {
        let mut works = works.into_iter().map(Work::any);
        let mut posted = 0;
        loop {
            let mut batch = [const { None }; BATCH];
            let taken = batch.iter_mut().zip(works.by_ref());
            let count = taken.map(|(place, work)| *place = Some(work)).count();
            if count == 0 {
                return Ok(());
            }
            let mut refused = None;
            let taken = batch.get_mut(..count).unwrap_or_default();
            let Err((at, error)) = self.post_batch(taken, &mut refused) else {
                posted += count;
                continue;
            };
            let rest = batch.into_iter().skip(at + 1).flatten().chain(works);
            let memory = refused.into_iter().chain(rest.map(|work| work.memory));
            return Err(Rejected::new(posted + at, error, memory));
        }
    }

    /// Posts these, which are there. If the work at the place that is said is refused, its memory is put into
    /// `refused`, and what is behind it is left where it is.
    fn post_batch(
        &self,
        batch: &mut [Option<Work>],
        refused: &mut Option<Memory>,
    ) -> Result<(), (usize, PostError)> {
        let mut at = 0;
        while at < batch.len() {
            let is_send = |work: &Option<Work>| {
                work.as_ref().is_some_and(|work| !matches!(work.kind, Kind::Receive))
            };
            let rest = batch.get_mut(at..).unwrap_or_default();
            let sends = rest.iter().take_while(|work| is_send(work)).count();
            match &self.inner {
                provider::Qp::Soft(qp) if sends > 1 => {
                    let run = rest.get_mut(..sends).unwrap_or_default();
                    if let Err((place, error)) = self.post_sends(qp, run) {
                        let work = run.get_mut(place).and_then(Option::take);
                        *refused = work.map(|work| work.memory);
                        return Err((at + place, error));
                    }
                    at += sends;
                }
                provider::Qp::Soft(_) | provider::Qp::Hw(_) => {
                    if let Some(work) = rest.first_mut().and_then(Option::take) {
                        self.post_any(work).map_err(|rejected| {
                            *refused = rejected.memory.into_iter().next();
                            (at, rejected.error)
                        })?;
                    }
                    at += 1;
                }
            }
        }
        Ok(())
    }

    /// Posts requests in one call. Those that are not posted have their memory again.
    fn post_sends(
        &self,
        qp: &adverb_device::Qp,
        run: &mut [Option<Work>],
    ) -> Result<(), (usize, PostError)> {
        // Held until the requests are posted, so that they are in the chain in their order.
        let mut chain = self.chain.lock();
        let mut sges = [[Sge { addr: 0, len: 0, lkey: 0 }; 1]; BATCH];
        let mut links: [Option<Link>; BATCH] = [None; BATCH];
        // How the chain is once so many are posted.
        let mut chains = [*chain; BATCH + 1];
        let mut refused = None;
        for (at, work) in run.iter_mut().enumerate() {
            let (Some(work), Some(sge), Some(link)) = (work, sges.get_mut(at), links.get_mut(at))
            else {
                break;
            };
            let max = self.cap.max_send_wr;
            let before = chains.get(at).copied().unwrap_or_default();
            if let Err(error) = work.memory.check(self.domain) {
                refused = Some((at, error));
                break;
            }
            if !work.signaled && before.len >= max {
                refused = Some((at, PostError::TooManyUnsignaled { max }));
                break;
            }
            *sge = [work.memory.sge()];
            let memory = std::mem::replace(&mut work.memory, Memory::Nothing);
            let kept = self.send_cq.put(memory, before.last);
            *link = Some(kept);
            if let Some(after) = chains.get_mut(at + 1) {
                *after = match work.signaled {
                    true => Chain::default(),
                    false => Chain { last: Some(kept), len: before.len + 1 },
                };
            }
        }
        let ready = links.iter().flatten().count();
        let mut requests = [SendWork::EMPTY; BATCH];
        let mut made = 0;
        let parts = run.iter().flatten().zip(&sges).zip(&links).zip(&mut requests).take(ready);
        for (((work, sge), link), request) in parts {
            let to = match work.to.soft() {
                Ok(to) => to,
                Err(error) => {
                    refused = Some((made, error));
                    break;
                }
            };
            let (kind, data) = match &work.kind {
                Kind::Send(kind) => (*kind, SendData::Gather(sge)),
                Kind::Bind(bind) => (SendKind::BindWindow, SendData::Bind(bind)),
                Kind::Receive => break, // The caller has seen to it.
            };
            let Work { wr_id, signaled, solicited, fence, .. } = *work;
            let buffer = link.and_then(|link| BufferNumber::new(link.number));
            *request = SendWork { wr_id, to, kind, data, signaled, solicited, fence, buffer };
            made += 1;
        }
        let result = qp.post_send(requests.get(..made).unwrap_or_default());
        let (posted, error) = match result {
            Ok(()) => (made, refused),
            Err((at, error)) => (at, Some((at, error))),
        };
        *chain = chains.get(posted).copied().unwrap_or_default();
        for (work, link) in run.iter_mut().zip(&links).skip(posted) {
            if let (Some(work), Some(link)) = (work, link)
                && let Some(memory) = self.send_cq.take_back(link.number)
            {
                work.memory = memory;
            }
        }
        error.map_or(Ok(()), Err)
    }
}
