//! What the tests of this crate have in common: queue pairs that are connected.

#![allow(dead_code, reason = "not every test uses all of it")]

use adverb_verbs::{AckTimeout, Context, Cq, Pd, Qp, QpConfig, Rc, RcConnect};
use std::time::Duration;

/// Long enough that only a failure takes it.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

/// A device and a domain of it, and those of the other end, which may be the same.
pub(crate) struct Bench {
    pub(crate) context: Context,
    pub(crate) pd: Pd,
    pub(crate) far: Context,
    pub(crate) far_pd: Pd,
}

impl Bench {
    pub(crate) fn new() -> Self {
        let context = Context::open("soft_lo").unwrap();
        let pd = context.alloc_pd();
        Self { far: context.clone(), far_pd: pd.clone(), context, pd }
    }

    /// Its ends reach one another by this path.
    pub(crate) fn over([context, far]: [Context; 2]) -> Self {
        let (pd, far_pd) = (context.alloc_pd(), far.alloc_pd());
        Self { context, pd, far, far_pd }
    }

    /// Two queue pairs connected to one another, the first one here and the second one there, made as
    /// `a` and `b` say.
    pub(crate) fn pair_of(&self, a: &QpConfig<'_>, b: &QpConfig<'_>) -> [Qp<Rc>; 2] {
        let pair = [self.pd.create_qp(a).unwrap(), self.far_pd.create_qp(b).unwrap()];
        connect(&pair[0], &pair[1]);
        pair
    }

    /// Two queue pairs connected to one another, the first one's work completing on `a`.
    pub(crate) fn pair(&self, a: &Cq, b: &Cq) -> [Qp<Rc>; 2] {
        self.pair_of(&QpConfig::new(a), &QpConfig::new(b))
    }
}

pub(crate) fn connect(a: &Qp<Rc>, b: &Qp<Rc>) {
    let [here, there] = [a.address().unwrap(), b.address().unwrap()];
    // The thread that serves the other end may wait long for a processor.
    let timeout = AckTimeout::from_exponent(19).unwrap();
    a.connect(RcConnect::new(there).timeout(timeout)).unwrap();
    b.connect(RcConnect::new(here).timeout(timeout)).unwrap();
}
