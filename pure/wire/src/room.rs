//! Room for headers: a fixed array and how much of it is used.

use core::fmt;

/// Up to `MAX` bytes, filled from the front.
#[derive(Clone, Copy)]
pub struct Room<const MAX: usize> {
    bytes: [u8; MAX],
    len: usize,
}

impl<const MAX: usize> Room<MAX> {
    /// None of it is used.
    #[inline]
    pub const fn new() -> Self {
        Self { bytes: [0; MAX], len: 0 }
    }

    /// The bytes in use.
    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }

    /// None of it is used any more.
    #[inline]
    pub const fn clear(&mut self) {
        self.len = 0;
    }

    /// Appends one header, for which there must be room.
    #[inline]
    pub fn push<const N: usize>(&mut self, header: [u8; N]) {
        let room = self.bytes.get_mut(self.len..).and_then(|room| room.first_chunk_mut::<N>());
        debug_assert!(room.is_some(), "no room for a header of {N} bytes");
        if let Some(room) = room {
            *room = header;
            self.len += N;
        }
    }

    /// Appends bytes, for which there must be room.
    #[inline]
    pub fn append(&mut self, bytes: &[u8]) {
        let room = self.bytes.get_mut(self.len..).and_then(|room| room.get_mut(..bytes.len()));
        debug_assert!(room.is_some(), "no room for {} bytes", bytes.len());
        if let Some(room) = room {
            room.copy_from_slice(bytes);
            self.len += bytes.len();
        }
    }

    /// Writes over bytes in use, from `at` on, which must all be there.
    #[inline]
    pub fn patch<const N: usize>(&mut self, at: usize, bytes: [u8; N]) {
        let used = self.bytes.get_mut(..self.len).and_then(|used| used.get_mut(at..));
        let place = used.and_then(|rest| rest.first_chunk_mut::<N>());
        debug_assert!(place.is_some(), "no {N} bytes at {at}");
        if let Some(place) = place {
            *place = bytes;
        }
    }
}

impl<const MAX: usize> Default for Room<MAX> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const MAX: usize> Eq for Room<MAX> {}

impl<const MAX: usize> PartialEq for Room<MAX> {
    fn eq(&self, other: &Self) -> bool {
        self.as_slice() == other.as_slice()
    }
}

impl<const MAX: usize> fmt::Debug for Room<MAX> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_slice(), f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_bytes_in_use_are_seen_and_compared() {
        let mut used = Room::<8>::new();
        used.push([1, 2, 3]);
        used.append(&[4]);
        assert_eq!(used.as_slice(), [1, 2, 3, 4]);
        used.patch(2, [7, 8]);
        assert_eq!(used.as_slice(), [1, 2, 7, 8]);

        let mut once = used;
        once.push([5]);
        assert_ne!(once, used);
        once.len = 4; // What is behind differs still.
        assert_eq!(once, used);
    }
}
