//! A list that lies on the stack as long as it is short.

use std::ops::{Deref, DerefMut};

/// A list; its first [`FEW`] elements ask for no memory.
#[derive(Debug)]
pub(crate) struct Few<T> {
    few: [T; FEW],
    /// All of them, once they are more.
    many: Vec<T>,
    count: usize,
    /// What is where there is no element.
    nothing: fn() -> T,
}

/// Most calls are about fewer descriptors than that.
const FEW: usize = 8;

impl<T> Few<T> {
    /// An empty list.
    pub(crate) fn new(nothing: fn() -> T) -> Self {
        Self { few: std::array::from_fn(|_| nothing()), many: Vec::new(), count: 0, nothing }
    }

    pub(crate) fn push(&mut self, element: T) {
        match self.few.get_mut(self.count) {
            Some(place) => *place = element,
            None => {
                if self.many.is_empty() {
                    let nothing = self.nothing;
                    let few = self.few.iter_mut();
                    self.many.extend(few.map(|place| std::mem::replace(place, nothing())));
                }
                self.many.push(element);
            }
        }
        self.count += 1;
    }

    /// A list of all that there is.
    pub(crate) fn of(all: impl Iterator<Item = T>, nothing: fn() -> T) -> Self {
        let mut list = Self::new(nothing);
        if all.size_hint().0 > FEW {
            list.many = all.collect();
            list.count = list.many.len();
        } else {
            all.for_each(|element| list.push(element));
        }
        list
    }
}

impl<T> Deref for Few<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        if self.many.is_empty() { self.few.get(..self.count).unwrap_or(&[]) } else { &self.many }
    }
}

impl<T> DerefMut for Few<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        if self.many.is_empty() {
            self.few.get_mut(..self.count).unwrap_or(&mut [])
        } else {
            &mut self.many
        }
    }
}
