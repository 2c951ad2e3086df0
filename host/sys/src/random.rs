//! Random bytes from the kernel, which need no file.

use rustix::rand::{GetRandomFlags, getrandom};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;

/// Fills `bytes` with random bytes; waits until the kernel has some, early after boot.
///
/// # Errors
///
/// Those of `getrandom(2)`.
pub fn fill(bytes: &mut [u8]) -> io::Result<()> {
    let mut done = 0;
    while let Some(rest) = bytes.get_mut(done..).filter(|rest| !rest.is_empty()) {
        match getrandom(rest, GetRandomFlags::empty()) {
            Ok(count) => done += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// A number that cannot be guessed: random bytes, or, if the kernel has none for this process, the keys of the
/// standard library's hash maps.
pub fn number() -> u64 {
    let mut bytes = [0; 8];
    match fill(&mut bytes) {
        Ok(()) => u64::from_ne_bytes(bytes),
        Err(_) => RandomState::new().build_hasher().finish(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_filled_and_no_two_calls_agree() {
        let (mut first, mut second) = ([0; 1000], [0; 1000]);
        fill(&mut first).unwrap();
        fill(&mut second).unwrap();
        assert_ne!(first, second);
        assert!(first.chunks(50).all(|part| part != [0; 50]));
    }
}
