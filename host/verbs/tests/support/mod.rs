//! What the tests of this crate have in common: queue pairs that are connected.

#![allow(dead_code, reason = "not every test uses all of it")]

use adverb_verbs::{Context, Cq, Pd, Qp, QpConfig, Rc, RcConnect};
use std::time::Duration;

/// Long enough that only a failure takes it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// A device, and a domain of it.
pub(crate) struct Bench {
    pub(crate) context: Context,
    pub(crate) pd: Pd,
}

impl Bench {
    pub(crate) fn new() -> Self {
        let context = Context::open("soft_lo").unwrap();
        let pd = context.alloc_pd();
        Self { context, pd }
    }

    /// Two queue pairs connected to one another, made as `a` and `b` say.
    pub(crate) fn pair_of(&self, a: &QpConfig<'_>, b: &QpConfig<'_>) -> [Qp<Rc>; 2] {
        let pair = [self.pd.create_qp(a).unwrap(), self.pd.create_qp(b).unwrap()];
        connect(&pair[0], &pair[1]);
        pair
    }

    /// Two queue pairs connected to one another, the first one's work completing on `a`.
    pub(crate) fn pair(&self, a: &Cq, b: &Cq) -> [Qp<Rc>; 2] {
        self.pair_of(&QpConfig::new(a), &QpConfig::new(b))
    }
}

pub(crate) fn connect(a: &Qp<Rc>, b: &Qp<Rc>) {
    let [here, there] = [a.address(1).unwrap(), b.address(1).unwrap()];
    a.connect(&RcConnect::new(here, there)).unwrap();
    b.connect(&RcConnect::new(there, here)).unwrap();
}
