//! Fields of a message, read and written in wire order.

use crate::mad::Mad;

/// Rest of the data of a message.
pub(super) struct Parts<'a>(&'a [u8]);

/// The data of a message, filled from the front.
pub(super) struct Data {
    bytes: [u8; Mad::DATA_LEN],
    len: usize,
}

impl<'a> Parts<'a> {
    pub(super) const fn new(data: &'a [u8; Mad::DATA_LEN]) -> Self {
        Self(data)
    }

    /// The next `N` bytes, which are there: messages are shorter than their data.
    pub(super) fn take<const N: usize>(&mut self) -> [u8; N] {
        let parts = self.0.split_first_chunk();
        debug_assert!(parts.is_some(), "a message is longer than its data");
        let (head, rest) = parts.unwrap_or((&[0; N], &[]));
        self.0 = rest;
        *head
    }

    pub(super) fn u16(&mut self) -> u16 {
        u16::from_be_bytes(self.take())
    }

    pub(super) fn u32(&mut self) -> u32 {
        u32::from_be_bytes(self.take())
    }

    pub(super) fn u64(&mut self) -> u64 {
        u64::from_be_bytes(self.take())
    }

    /// 24 bits and the byte after them.
    pub(super) fn u24(&mut self) -> (u32, u8) {
        let [a, b, c, byte] = self.take();
        (u32::from_be_bytes([0, a, b, c]), byte)
    }
}

impl Data {
    pub(super) const fn new() -> Self {
        Self { bytes: [0; Mad::DATA_LEN], len: 0 }
    }

    /// Appends `bytes`, for which there is room.
    #[must_use]
    pub(super) fn put<const N: usize>(mut self, bytes: [u8; N]) -> Self {
        let room = self.bytes.get_mut(self.len..).and_then(|room| room.first_chunk_mut::<N>());
        debug_assert!(room.is_some(), "a message is longer than its data");
        if let Some(room) = room {
            *room = bytes;
            self.len += N;
        }
        self
    }

    #[must_use]
    pub(super) fn u32(self, value: u32) -> Self {
        self.put(value.to_be_bytes())
    }

    /// Appends 24 bits and a byte.
    #[must_use]
    pub(super) fn u24(self, value: u32, byte: u8) -> Self {
        let [_, a, b, c] = value.to_be_bytes();
        self.put([a, b, c, byte])
    }

    /// All of them, every byte of which was appended.
    pub(super) fn done(self) -> [u8; Mad::DATA_LEN] {
        debug_assert_eq!(self.len, Mad::DATA_LEN, "a message is as long as its data");
        self.bytes
    }
}
