//! Proving knowledge of a secret without sending it: HMAC-SHA256 over all bytes that both ends have sent so far.

use std::fmt;
use std::str::FromStr;

use hmac::{Hmac, Mac};
use serde::{Deserialize, Serialize};
use sha2::Sha256;

/// Length of a proof in bytes.
pub const PROOF_LEN: usize = 32;
/// Length in bytes of each end's random bytes.
pub const NONCE_LEN: usize = 32;

/// The end that proves. One end's proof is not valid for the other, so it cannot be reflected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProvingEnd {
    /// The end that dialled.
    Initiator,
    /// The end that was dialled.
    Acceptor,
}

impl ProvingEnd {
    fn label(self) -> &'static [u8] {
        match self {
            ProvingEnd::Initiator => b"landbridge 4 initiator",
            ProvingEnd::Acceptor => b"landbridge 4 acceptor",
        }
    }
}

/// A job's or a site's secret, 32 bytes. Never printed.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Secret([u8; 32]);

impl Secret {
    /// The secret outside any job: known to everybody.
    pub const NONE: Secret = Secret([0; 32]);

    /// A secret made of these random bytes.
    pub fn new(bytes: [u8; 32]) -> Secret {
        Secret(bytes)
    }

    /// The secret that holders of a private key share with their own gateway.
    pub fn derive(private_key: &[u8], purpose: &str) -> Secret {
        Secret(mac(private_key, &[b"landbridge derive", purpose.as_bytes()]))
    }

    /// The proof of one end. `transcript`: the bytes that both ends have sent, including fresh random bytes of each.
    pub fn prove(&self, end: ProvingEnd, transcript: &[u8]) -> [u8; PROOF_LEN] {
        mac(&self.0, &[end.label(), transcript])
    }

    /// Returns true if a proof is correct. Takes constant time.
    pub fn verify(&self, end: ProvingEnd, transcript: &[u8], proof: &[u8; PROOF_LEN]) -> bool {
        let mut hmac = keyed(&self.0);
        hmac.update(end.label());
        hmac.update(transcript);
        hmac.verify_slice(proof).is_ok()
    }

    /// HMAC-SHA256 over the concatenation of these parts.
    pub(crate) fn mac(&self, parts: &[&[u8]]) -> [u8; 32] {
        mac(&self.0, parts)
    }

    /// Returns true if the first bytes of [`Secret::mac`] are `tag`. Takes constant time.
    pub(crate) fn verify_parts(&self, parts: &[&[u8]], tag: &[u8]) -> bool {
        let mut hmac = keyed(&self.0);
        parts.iter().for_each(|part| hmac.update(part));
        hmac.verify_truncated_left(tag).is_ok()
    }

    /// The secret as 64 hexadecimal digits, for passing it to a process that may know it.
    pub fn to_hex(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

fn keyed(key: &[u8]) -> Hmac<Sha256> {
    // HMAC accepts keys of any length; the error type exists for other MACs.
    Hmac::<Sha256>::new_from_slice(key).unwrap_or_else(|_| unreachable!("HMAC takes keys of any length"))
}

pub(crate) fn mac(key: &[u8], parts: &[&[u8]]) -> [u8; 32] {
    let mut hmac = keyed(key);
    parts.iter().for_each(|part| hmac.update(part));
    hmac.finalize().into_bytes().into()
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

impl From<Secret> for String {
    fn from(secret: Secret) -> String {
        secret.to_hex()
    }
}

impl TryFrom<String> for Secret {
    type Error = &'static str;
    fn try_from(text: String) -> Result<Secret, &'static str> {
        text.parse()
    }
}

impl FromStr for Secret {
    type Err = &'static str;
    fn from_str(text: &str) -> Result<Secret, &'static str> {
        const EXPECTED: &str = "a secret is 64 hexadecimal digits";
        if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(EXPECTED);
        }
        let mut out = [0; 32];
        for (at, byte) in out.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).map_err(|_| EXPECTED)?;
        }
        Ok(Secret(out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_secret_end_and_transcript_verify() {
        let (one, two) = (Secret::new([1; 32]), Secret::new([2; 32]));
        let proof = one.prove(ProvingEnd::Initiator, b"rank 3");
        assert!(one.verify(ProvingEnd::Initiator, b"rank 3", &proof));
        assert!(!one.verify(ProvingEnd::Initiator, b"rank 4", &proof));
        assert!(!one.verify(ProvingEnd::Acceptor, b"rank 3", &proof));
        assert!(!two.verify(ProvingEnd::Initiator, b"rank 3", &proof));
    }

    #[test]
    fn hex_and_back() {
        let secret = Secret::new([0xA7; 32]);
        assert_eq!(secret.to_hex().parse(), Ok(secret.clone()));
        assert!("zz".repeat(32).parse::<Secret>().is_err());
        assert!("é".repeat(32).parse::<Secret>().is_err());
        assert!("+7".repeat(32).parse::<Secret>().is_err(), "a sign is no digit");
        assert_eq!(format!("{secret:?}"), "Secret(…)");
    }
}
