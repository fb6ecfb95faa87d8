//! Transport of the job's secret from a side's first process to its others, over the side's own MPI.
//!
//! That MPI may not encrypt, so each process makes a key for this one purpose, and the first process seals the secret
//! for each of them: an X25519 agreement between two keys that are used once, HKDF-SHA256 over both public keys,
//! ChaCha20-Poly1305. A passive listener on the side's MPI learns nothing. An attacker who can change its messages can
//! substitute keys of their own and learn the secret, because no process can verify the origin of the keys it receives.

use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use ring::agreement::{EphemeralPrivateKey, UnparsedPublicKey, X25519, agree_ephemeral};
use ring::error::Unspecified;
use ring::hkdf::{HKDF_SHA256, Salt};
use ring::rand::SystemRandom;
use serde::{Deserialize, Serialize};

const PURPOSE: &[u8] = b"landbridge: a coupling's job secret for a process of a side";

/// A process's own key, for one secret.
pub(crate) struct SecretReceiver {
    private: EphemeralPrivateKey,
    public: Vec<u8>,
}

/// A secret that only one process can read.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Sealed {
    /// Public key of the sealing process, made for this secret.
    public: Vec<u8>,
    text: Vec<u8>,
}

impl SecretReceiver {
    /// # Errors
    /// The system provides no random numbers.
    pub(crate) fn new() -> Result<SecretReceiver, Unspecified> {
        let private = EphemeralPrivateKey::generate(&X25519, &SystemRandom::new())?;
        let public = private.compute_public_key()?.as_ref().to_vec();
        Ok(SecretReceiver { private, public })
    }

    /// The public key, for the first process.
    pub(crate) fn public(&self) -> &[u8] {
        &self.public
    }

    /// # Errors
    /// The secret was sealed for another key, or changed in transit.
    pub(crate) fn open(self, sealed: Sealed) -> Result<String, Unspecified> {
        let Sealed { public, mut text } = sealed;
        let key = key(self.private, &public, [&public, &self.public])?;
        let text = key.open_in_place(nonce(), Aad::empty(), &mut text)?;
        String::from_utf8(text.to_vec()).map_err(|_| Unspecified)
    }
}

impl Sealed {
    /// Seals a secret for the process with this public key.
    ///
    /// # Errors
    /// `receiver` is not a key, or the system provides no random numbers.
    pub(crate) fn new(secret: &str, receiver: &[u8]) -> Result<Sealed, Unspecified> {
        let SecretReceiver { private, public } = SecretReceiver::new()?;
        let key = key(private, receiver, [&public, receiver])?;
        let mut text = secret.as_bytes().to_vec();
        key.seal_in_place_append_tag(nonce(), Aad::empty(), &mut text)?;
        Ok(Sealed { public, text })
    }
}

/// `of`: the public keys of the sealing process and of the opening one.
fn key(own: EphemeralPrivateKey, other: &[u8], of: [&[u8]; 2]) -> Result<LessSafeKey, Unspecified> {
    let derive = |shared: &[u8]| {
        let derived = Salt::new(HKDF_SHA256, PURPOSE).extract(shared);
        let key = derived.expand(&of, &CHACHA20_POLY1305).map(UnboundKey::from);
        key.map(LessSafeKey::new)
    };
    agree_ephemeral(own, &UnparsedPublicKey::new(&X25519, other), derive)?
}

/// The nonce is constant because each key seals one secret.
fn nonce() -> Nonce {
    Nonce::assume_unique_for_key([0; 12])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_its_receiver_opens_a_secret() {
        let (one, other) = (SecretReceiver::new().unwrap(), SecretReceiver::new().unwrap());
        let sealed = Sealed::new("a secret", one.public()).unwrap();
        assert!(!sealed.text.windows(8).any(|bytes| bytes == b"a secret"));
        assert!(other.open(sealed.clone()).is_err());
        assert_eq!(one.open(sealed).unwrap(), "a secret");
    }

    #[test]
    fn what_was_changed_on_the_way_is_refused() {
        for place in [0, 7, 20] {
            let receiver = SecretReceiver::new().unwrap();
            let mut sealed = Sealed::new("a secret", receiver.public()).unwrap();
            sealed.text[place] ^= 1;
            assert!(receiver.open(sealed).is_err());
        }
        assert!(Sealed::new("a secret", b"no key").is_err());
    }
}
