//! Bytes of Python objects, and registered memory as Python sees it.
//!
//! # Safety
//!
//! 1. A view of registered memory (`memoryview`, NumPy) holds the Python object that it was asked from, that object
//!    holds the region, and no method of any object ends a region: a view never outlives its memory.
//! 2. Posted work holds the region, too, in the Rust libraries. An object that is collected while a peer writes takes
//!    nothing away from it.
//! 3. No reference to bytes is made that a peer or another thread can change: what is copied is copied by raw
//!    pointers. A copy that a peer writes into meanwhile is a mix of old and new bytes.

use crate::errors::other;
use adverb::verbs::{Access, Mr};
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::os::raw::{c_int, c_void};
use std::ptr;

/// A range of a region.
#[derive(Clone, Debug)]
pub(crate) struct Range {
    mr: Mr,
    offset: usize,
    len: usize,
}

impl Range {
    /// `len` bytes of `mr` from `offset` on.
    pub(crate) fn new(mr: &Mr, offset: usize, len: usize) -> PyResult<Self> {
        match offset.checked_add(len) {
            Some(end) if end <= mr.len() => Ok(Self { mr: mr.clone(), offset, len }),
            _ => Err(other(format!(
                "{len} bytes from {offset} on are not within the {} bytes of the memory",
                mr.len()
            ))),
        }
    }

    /// `len` bytes of it from `offset` on.
    pub(crate) fn part(&self, offset: usize, len: usize) -> PyResult<Self> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len => {
                Ok(Self { mr: self.mr.clone(), offset: self.offset + offset, len })
            }
            _ => Err(other(format!(
                "{len} bytes from {offset} on are not within the {} bytes that there are",
                self.len
            ))),
        }
    }

    fn start(&self) -> *mut u8 {
        // SAFETY: both constructors have checked that the range lies in the region.
        unsafe { self.mr.as_ptr().as_ptr().add(self.offset) }
    }

    fn is_read_only(&self) -> bool {
        !self.mr.access().contains(Access::LOCAL_WRITE)
    }

    /// Copies the bytes of `data`, an object with the buffer protocol, to `offset`.
    pub(crate) fn write(&self, offset: usize, data: &Bound<'_, PyAny>) -> PyResult<()> {
        if self.is_read_only() {
            return Err(other("the memory was registered without local write".to_owned()));
        }
        let data = Bytes::of(data)?;
        let target = self.part(offset, data.len())?;
        // SAFETY: `data` is held by this function and has so many bytes, and so has the range; the two may overlap.
        unsafe { ptr::copy(data.start(), target.start(), data.len()) };
        Ok(())
    }

    /// A copy.
    pub(crate) fn to_bytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        PyBytes::new_with(py, self.len, |target| {
            // SAFETY: the range has so many bytes (rule 1), and new bytes are no part of it.
            unsafe { ptr::copy_nonoverlapping(self.start(), target.as_mut_ptr(), target.len()) };
            Ok(())
        })
    }

    /// Fills in `view` for `owner`, which holds the region.
    ///
    /// # Safety
    ///
    /// `view` and `flags` are those of a call of the buffer protocol, and `owner` holds this range's region for as
    /// long as it lives.
    pub(crate) unsafe fn lend(
        &self,
        owner: &Bound<'_, PyAny>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let len = isize::try_from(self.len)
            .map_err(|_| PyBufferError::new_err("too long for the buffer protocol"))?;
        let read_only = c_int::from(self.is_read_only());
        let start = self.start().cast::<c_void>();
        // SAFETY: `view` is the caller's; `owner`, which the view holds from now on, holds the memory (rule 1).
        let filled =
            unsafe { ffi::PyBuffer_FillInfo(view, owner.as_ptr(), start, len, read_only, flags) };
        if filled == 0 { Ok(()) } else { Err(PyErr::fetch(owner.py())) }
    }
}

/// The bytes of an object with the buffer protocol: `bytes`, `bytearray`, a contiguous array.
pub(crate) struct Bytes(PyUntypedBuffer);

impl Bytes {
    /// Asks `object` for them.
    pub(crate) fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let buffer = PyUntypedBuffer::get(object)?;
        if !buffer.is_c_contiguous() {
            return Err(PyBufferError::new_err(
                "the bytes do not lie one after the other: make them so, with numpy.ascontiguousarray for example",
            ));
        }
        Ok(Self(buffer))
    }

    fn start(&self) -> *const u8 {
        self.0.buf_ptr().cast::<u8>().cast_const()
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.0.len_bytes()
    }

    /// A copy.
    pub(crate) fn to_vec(&self) -> Vec<u8> {
        let mut copy = vec![0; self.len()];
        // SAFETY: the buffer is held and has so many bytes; a new vector is no part of it.
        unsafe { ptr::copy_nonoverlapping(self.start(), copy.as_mut_ptr(), copy.len()) };
        copy
    }
}
