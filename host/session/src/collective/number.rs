//! Numbers that groups reduce, many at a time.
//!
//! Members of a group run on machines of one kind: numbers travel as they lie in memory.
//!
//! # Safety
//!
//! 1. [`Number`] is sealed: it is `f32`, `f64`, `i32` and `i64`, which have no padding and in which
//!    every pattern of bits is a value.

use std::fmt;

/// What is done with two numbers.
///
/// [`Group`](crate::Group) has an example.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Reduction {
    /// They are added; integers wrap.
    Sum,
    /// The smaller one; of equal ones the first. A number is smaller than what is not a number.
    Min,
    /// The larger one; of equal ones the first. A number is larger than what is not a number.
    Max,
}

mod sealed {
    pub trait Sealed {}
}

/// A number that groups can reduce: `f32`, `f64`, `i32` and `i64`.
///
/// [`Group`](crate::Group) has an example.
pub trait Number: Copy + Default + fmt::Debug + sealed::Sealed {
    /// Bytes of it.
    const BYTES: usize;
    /// What comes of two of them, of which this is the first.
    #[must_use]
    fn reduce(self, other: Self, how: Reduction) -> Self;
}

macro_rules! number {
    ($type:ty, $add:expr, $is_none:expr) => {
        impl sealed::Sealed for $type {}
        impl Number for $type {
            const BYTES: usize = size_of::<Self>();

            // Written out, because what `min` makes of 0 and -0 depends on the code around it.
            #[inline(always)]
            fn reduce(self, other: Self, how: Reduction) -> Self {
                match how {
                    Reduction::Sum => $add(self, other),
                    Reduction::Min if other < self || $is_none(self) => other,
                    Reduction::Max if other > self || $is_none(self) => other,
                    Reduction::Min | Reduction::Max => self,
                }
            }
        }
    };
}

number!(f32, |a: f32, b: f32| a + b, |a: f32| a.is_nan());
number!(f64, |a: f64, b: f64| a + b, |a: f64| a.is_nan());
number!(i32, i32::wrapping_add, |_| false);
number!(i64, i64::wrapping_add, |_| false);

/// `first[i] = first[i] ∘ second[i]`.
#[inline]
pub(super) fn reduce_after<T: Number>(first: &mut [T], second: &[T], how: Reduction) {
    // A loop for each, so that none decides anything.
    match how {
        Reduction::Sum => each(first, second, |a, b| a.reduce(b, Reduction::Sum)),
        Reduction::Min => each(first, second, |a, b| a.reduce(b, Reduction::Min)),
        Reduction::Max => each(first, second, |a, b| a.reduce(b, Reduction::Max)),
    }
}

/// `second[i] = first[i] ∘ second[i]`.
#[inline]
pub(super) fn reduce_before<T: Number>(second: &mut [T], first: &[T], how: Reduction) {
    match how {
        Reduction::Sum => each(second, first, |b, a| a.reduce(b, Reduction::Sum)),
        Reduction::Min => each(second, first, |b, a| a.reduce(b, Reduction::Min)),
        Reduction::Max => each(second, first, |b, a| a.reduce(b, Reduction::Max)),
    }
}

#[inline(always)]
fn each<T: Number>(into: &mut [T], other: &[T], of: impl Fn(T, T) -> T) {
    debug_assert_eq!(into.len(), other.len(), "the callers cut both to one length");
    for (into, other) in into.iter_mut().zip(other) {
        *into = of(*into, *other);
    }
}

/// Numbers as the bytes that they lie in.
#[inline]
pub(super) fn bytes<T: Number>(numbers: &[T]) -> &[u8] {
    // SAFETY: the same memory for the same time; bytes need no alignment, and all of these are
    // initialised, because there is no padding (rule 1).
    unsafe { std::slice::from_raw_parts(numbers.as_ptr().cast(), size_of_val(numbers)) }
}

/// Numbers as the bytes that they lie in, to be set.
#[inline]
pub(super) fn bytes_mut<T: Number>(numbers: &mut [T]) -> &mut [u8] {
    // SAFETY: the same memory for the same time, borrowed mutably; initialised as in `bytes`, and
    // whatever is put there is a number (rule 1).
    unsafe { std::slice::from_raw_parts_mut(numbers.as_mut_ptr().cast(), size_of_val(numbers)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_numbers_leave_the_first_and_no_number_gives_way() {
        let bits = |a: f32, b: f32, how| a.reduce(b, how).to_bits();
        for how in [Reduction::Min, Reduction::Max] {
            assert_eq!(bits(0.0, -0.0, how), 0.0_f32.to_bits());
            assert_eq!(bits(-0.0, 0.0, how), (-0.0_f32).to_bits());
            assert_eq!(bits(f32::NAN, 1.0, how), 1.0_f32.to_bits());
            assert_eq!(bits(1.0, f32::NAN, how), 1.0_f32.to_bits());
        }
        assert_eq!(1_i32.reduce(2, Reduction::Max), 2);
        assert_eq!(i64::MAX.reduce(1, Reduction::Sum), i64::MIN);
    }

    #[test]
    fn many_numbers_are_reduced_as_each_of_them() {
        let first = [0.5_f64, -0.0, 3.0, f64::NAN, 1e300];
        let second = [0.25, 0.0, 4.0, 1.0, 1e300];
        for how in [Reduction::Sum, Reduction::Min, Reduction::Max] {
            let due = first.iter().zip(second).map(|(a, b)| a.reduce(b, how).to_bits());
            let due: Vec<_> = due.collect();
            let (mut after, mut before) = (first, second);
            reduce_after(&mut after, &second, how);
            reduce_before(&mut before, &first, how);
            assert_eq!(after.map(f64::to_bits).to_vec(), due);
            assert_eq!(before.map(f64::to_bits).to_vec(), due);
        }
    }

    #[test]
    fn numbers_are_their_bytes() {
        let mut numbers = [1_i32, -1];
        assert_eq!(bytes(&numbers)[4..], [0xff; 4]);
        bytes_mut(&mut numbers)[..4].fill(0);
        assert_eq!(numbers, [0, -1]);
    }
}
