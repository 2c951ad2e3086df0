//! Takes fields off the front of a command, in the byte order of the machine.

use super::{CommandError, PRIVATE_MAX};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::time::Duration;

/// The bytes that are left.
pub(super) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(super) const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(super) fn take(&mut self, len: usize) -> Result<&'a [u8], CommandError> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(CommandError::Invalid)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], CommandError> {
        let (taken, rest) = self.0.split_first_chunk::<N>().ok_or(CommandError::Invalid)?;
        self.0 = rest;
        Ok(*taken)
    }

    pub(super) fn skip(&mut self, len: usize) -> Result<(), CommandError> {
        self.take(len).map(|_| ())
    }

    pub(super) fn u8(&mut self) -> Result<u8, CommandError> {
        self.array().map(u8::from_ne_bytes)
    }

    pub(super) fn u16(&mut self) -> Result<u16, CommandError> {
        self.array().map(u16::from_ne_bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, CommandError> {
        self.array().map(u32::from_ne_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, CommandError> {
        self.array().map(u64::from_ne_bytes)
    }

    pub(super) fn milliseconds(&mut self) -> Result<Duration, CommandError> {
        Ok(Duration::from_millis(self.u32()?.into()))
    }

    /// Private data of `len` bytes in its field.
    pub(super) fn private(&mut self, len: u8) -> Result<Vec<u8>, CommandError> {
        let field = self.take(PRIVATE_MAX)?;
        Ok(field.get(..usize::from(len)).ok_or(CommandError::Invalid)?.to_vec())
    }

    /// A `struct sockaddr_in6`, or a `struct sockaddr_in` in its place; `None` if its family is 0.
    pub(super) fn address_in6(&mut self) -> Result<Option<SocketAddr>, CommandError> {
        let field = self.take(IN6_LEN)?;
        address(field).map(|found| found.map(|(address, _)| address))
    }

    /// A `struct sockaddr_storage` that is said to be `len` bytes long; `None` if that is 0.
    pub(super) fn address_storage(&mut self, len: u16) -> Result<Option<SocketAddr>, CommandError> {
        let field = self.take(STORAGE_LEN)?;
        if len == 0 {
            return Ok(None);
        }
        match address(field)? {
            Some((address, own)) if own == usize::from(len) => Ok(Some(address)),
            Some(_) | None => Err(CommandError::Invalid),
        }
    }
}

/// An address, and the length of its structure.
fn address(field: &[u8]) -> Result<Option<(SocketAddr, usize)>, CommandError> {
    let mut field = Reader::new(field);
    let (family, port) = (field.u16()?, u16::from_be_bytes(field.array()?));
    match i32::from(family) {
        libc::AF_UNSPEC => Ok(None),
        libc::AF_INET => {
            let ip = IpAddr::V4(Ipv4Addr::from(field.array::<4>()?));
            Ok(Some((SocketAddr::new(ip, port), IN_LEN)))
        }
        libc::AF_INET6 => {
            let flow = u32::from_be_bytes(field.array()?);
            let ip = Ipv6Addr::from(field.array::<16>()?);
            let scope = field.u32()?;
            Ok(Some((SocketAddrV6::new(ip, port, flow, scope).into(), IN6_LEN)))
        }
        _ => Err(CommandError::Invalid),
    }
}

/// Length of `struct sockaddr_in`.
pub(super) const IN_LEN: usize = 16;

/// Length of `struct sockaddr_in6`.
pub(super) const IN6_LEN: usize = 28;

/// Length of `struct sockaddr_storage`.
pub(super) const STORAGE_LEN: usize = 128;
