//! Connections that their programs have closed: the stack forgets each when it is over, and says nothing.
//!
//! Which are left tells `carrier.rs`.

use std::collections::VecDeque;

/// Those that are to be let go of, in the order in which they were closed.
#[derive(Debug)]
pub(super) struct Closing<T>(VecDeque<T>);

impl<T> Default for Closing<T> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<T: Copy> Closing<T> {
    pub(super) fn add(&mut self, one: T) {
        self.0.push_back(one);
    }

    /// Takes the first that is gone. The oldest are over first, as a rule, so that few are asked.
    pub(super) fn take(&mut self, mut is_gone: impl FnMut(T) -> bool) -> Option<T> {
        let at = self.0.iter().position(|one| is_gone(*one))?;
        self.0.remove(at)
    }
}

#[cfg(test)]
mod tests {
    use super::Closing;

    /// Goal: many that end in the order in which they were closed cost one question each.
    #[test]
    fn what_is_over_first_is_found_first() {
        let mut closing = Closing::default();
        (0..1000).for_each(|one| closing.add(one));
        let mut asked = 0;
        for over in 0..1000 {
            let is_gone = |one| {
                asked += 1;
                one == over
            };
            assert_eq!(closing.take(is_gone), Some(over));
        }
        assert_eq!((asked, closing.take(|_| true)), (1000, None));
    }

    #[test]
    fn one_is_found_behind_those_that_last() {
        let mut closing = Closing::default();
        (0..3).for_each(|one| closing.add(one));
        assert_eq!(closing.take(|one| one == 2), Some(2));
        assert_eq!(closing.take(|one| one == 2), None);
        assert_eq!(closing.take(|_| true), Some(0));
    }
}
