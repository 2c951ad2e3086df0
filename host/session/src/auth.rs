//! Authentication by a shared secret: a challenge, and a proof from each side.
//!
//! A proof is an HMAC-SHA-256 (RFC 2104) over the side's role, the server's nonce and the client's
//! Hello, which holds the client's nonce and its queue pairs: a proof of one connection is of no use in
//! another, one side's is of no use to the other, and a Hello that was changed on its way has none.
//! What follows on the connection, and the traffic of the queue pairs, is not protected by it.

use crate::frame::{Frame, NONCE_BYTES, PROOF_BYTES};
use adverb_sys::random;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use std::fmt;
use std::io;

/// A secret that both sides of an endpoint know, of any length. It is never sent, and never shown.
///
/// ```
/// use adverb_session::{Config, Secret};
///
/// let config = Config::default().secret(Secret::from("open sesame"));
/// ```
#[derive(Clone, Eq, PartialEq)]
pub struct Secret(Box<[u8]>);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

impl From<&str> for Secret {
    fn from(text: &str) -> Self {
        Self(text.as_bytes().into())
    }
}

impl From<String> for Secret {
    fn from(text: String) -> Self {
        Self(text.into_bytes().into())
    }
}

impl From<&[u8]> for Secret {
    fn from(bytes: &[u8]) -> Self {
        Self(bytes.into())
    }
}

/// Whose proof it is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Role {
    Client,
    Server,
}

impl Secret {
    fn mac(&self, role: Role, hello: &Frame, nonce: &[u8; NONCE_BYTES]) -> Option<Hmac<Sha256>> {
        // HMAC takes keys of any length: this does not fail.
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).ok()?;
        mac.update(match role {
            Role::Client => b"adverb session client ",
            Role::Server => b"adverb session server ",
        });
        mac.update(nonce);
        mac.update(&hello.emit());
        Some(mac)
    }

    /// The proof that `role` gives.
    pub(crate) fn prove(
        &self,
        role: Role,
        hello: &Frame,
        nonce: &[u8; NONCE_BYTES],
    ) -> [u8; PROOF_BYTES] {
        self.mac(role, hello, nonce)
            .map_or([0; PROOF_BYTES], |mac| mac.finalize().into_bytes().into())
    }

    /// Whether `proof` is the one that `role` has to give, in a time that does not depend on it.
    pub(crate) fn is_proved(
        &self,
        role: Role,
        hello: &Frame,
        nonce: &[u8; NONCE_BYTES],
        proof: &[u8; PROOF_BYTES],
    ) -> bool {
        self.mac(role, hello, nonce).is_some_and(|mac| mac.verify_slice(proof).is_ok())
    }
}

/// A nonce: 16 random bytes of the kernel, never used twice.
///
/// # Errors
///
/// The system gives no random bytes.
pub(crate) fn nonce() -> io::Result<[u8; NONCE_BYTES]> {
    let mut bytes = [0; NONCE_BYTES];
    random::fill(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 4231, test case 2, by way of the parts that a proof is made of.
    #[test]
    fn the_code_is_that_of_the_rfc() {
        let mut mac = Hmac::<Sha256>::new_from_slice(b"Jefe").unwrap();
        mac.update(b"what do ya want for nothing?");
        let bytes: [u8; 32] = mac.finalize().into_bytes().into();
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
    }

    #[test]
    fn a_proof_is_of_one_role_one_secret_one_nonce_and_one_hello() {
        let (secret, other) = (Secret::from("swordfish"), Secret::from("swordfisH"));
        let nonce = nonce().unwrap();
        let hello = Frame::Ready;
        let proof = secret.prove(Role::Client, &hello, &nonce);
        assert!(secret.is_proved(Role::Client, &hello, &nonce, &proof));
        assert!(!secret.is_proved(Role::Server, &hello, &nonce, &proof));
        assert!(!other.is_proved(Role::Client, &hello, &nonce, &proof));
        assert!(!secret.is_proved(Role::Client, &Frame::Bye, &nonce, &proof));
        assert!(!secret.is_proved(Role::Client, &hello, &super::nonce().unwrap(), &proof));
    }

    #[test]
    fn a_secret_is_not_shown() {
        assert_eq!(format!("{:?}", Secret::from("swordfish")), "Secret(…)");
    }
}
