//! Admission tokens: a proof of a shared secret in the first bytes that a peer sends to a gateway, so that the gateway
//! can serve the peer before strangers and before any expensive cryptography.
//!
//! ```text
//! 12 bytes  random, never used before
//!  4 bytes  key: which secret (a job's number, 0 for a site's users)               } masked
//!  4 bytes  the initiator's clock, in seconds since 1970, modulo 2^32              }
//! 12 bytes  HMAC-SHA256(secret, label ‖ site ‖ gateway ‖ the 20 bytes above), truncated
//! ```
//! Without TLS, a token is the hello's nonce; with TLS, it is the server name of the ClientHello. A peer without a
//! token, such as one of an earlier release, sends 32 random bytes or no server name. The two masked fields are XORed
//! with 8 bytes derived from the random bytes and the names of site and gateway. To an observer who does not know both
//! names, a token is 32 random bytes.
//!
//! A token is no lasting authentication. The handshake still proves the secret in both directions, and a recorded token
//! is useless once the gateway has seen it.

use crate::proof::Secret;

/// Length of a token in bytes.
pub const TOKEN_LEN: usize = 32;
/// Length in bytes of a token's random part.
pub const RANDOM_LEN: usize = 12;
/// Length of the part that the tag covers.
const CLAIM_LEN: usize = 20;
const TAG_LABEL: &[u8] = b"landbridge 6 token";
const MASK_LABEL: &[u8] = b"landbridge 6 token mask";

/// The gateway for which a token is made. Another gateway does not accept it.
#[derive(Clone, Copy, Debug)]
pub struct Audience<'a> {
    /// Name of its site.
    pub site: &'a str,
    /// Its name.
    pub gateway: &'a str,
}

/// A received token, not verified yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token {
    bytes: [u8; TOKEN_LEN],
    /// The number of its secret.
    pub key: u32,
    /// The initiator's clock, in seconds since 1970, modulo 2^32.
    pub seconds: u32,
}

impl Token {
    /// Makes a token and returns the bytes to send. `key`: the number of the secret; `random`: fresh random bytes;
    /// `seconds`: the time since 1970.
    pub fn make(
        secret: &Secret,
        (key, seconds): (u32, u64),
        to: Audience<'_>,
        random: [u8; RANDOM_LEN],
    ) -> [u8; TOKEN_LEN] {
        let mut bytes = [0; TOKEN_LEN];
        bytes[..RANDOM_LEN].copy_from_slice(&random);
        bytes[12..16].copy_from_slice(&key.to_le_bytes());
        bytes[16..20].copy_from_slice(&(seconds as u32).to_le_bytes());
        mask(&mut bytes, to);
        let tag = to.tag(secret, &bytes[..CLAIM_LEN]);
        bytes[CLAIM_LEN..].copy_from_slice(&tag[..TOKEN_LEN - CLAIM_LEN]);
        bytes
    }

    /// Reads a received token. `to`: the gateway that reads it. Any bytes can be read; only [`Token::verify`] shows
    /// that they are a token.
    pub fn read(bytes: [u8; TOKEN_LEN], to: Audience<'_>) -> Token {
        let mut clear = bytes;
        mask(&mut clear, to);
        let number = |at: usize| u32::from_le_bytes([clear[at], clear[at + 1], clear[at + 2], clear[at + 3]]);
        Token { bytes, key: number(12), seconds: number(16) }
    }

    /// Returns true if it was made with this secret for this gateway. Takes constant time.
    pub fn verify(&self, secret: &Secret, to: Audience<'_>) -> bool {
        secret.verify_parts(&to.parts(&self.bytes[..CLAIM_LEN]), &self.bytes[CLAIM_LEN..])
    }

    /// Its random part, by which a gateway recognises a token that it has seen before.
    pub fn random(&self) -> [u8; RANDOM_LEN] {
        let mut random = [0; RANDOM_LEN];
        random.copy_from_slice(&self.bytes[..RANDOM_LEN]);
        random
    }
}

impl<'a> Audience<'a> {
    /// Names contain no zero byte, so no two audiences give the same bytes.
    fn parts(self, claim: &'a [u8]) -> [&'a [u8]; 6] {
        [TAG_LABEL, self.site.as_bytes(), b"\0", self.gateway.as_bytes(), b"\0", claim]
    }

    fn tag(self, secret: &Secret, claim: &[u8]) -> [u8; 32] {
        secret.mac(&self.parts(claim))
    }
}

fn mask(bytes: &mut [u8; TOKEN_LEN], to: Audience<'_>) {
    let (random, rest) = bytes.split_at_mut(RANDOM_LEN);
    let names = [MASK_LABEL, to.site.as_bytes(), b"\0", to.gateway.as_bytes(), b"\0"];
    let mask = crate::proof::mac(random, &names);
    rest[..CLAIM_LEN - RANDOM_LEN].iter_mut().zip(mask).for_each(|(byte, mask)| *byte ^= mask);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HERE: Audience<'_> = Audience { site: "lyon", gateway: "gw1" };

    fn made(secret: u8) -> [u8; TOKEN_LEN] {
        Token::make(&Secret::new([secret; 32]), (7, (5 << 32) + 1_700_000_000), HERE, [9; RANDOM_LEN])
    }

    #[test]
    fn a_token_says_which_secret_and_when_and_verifies_with_that_secret_at_that_gateway() {
        let (secret, other) = (Secret::new([1; 32]), Secret::new([2; 32]));
        let token = Token::read(made(1), HERE);
        assert_eq!((token.key, token.seconds, token.random()), (7, 1_700_000_000, [9; RANDOM_LEN]));
        assert!(token.verify(&secret, HERE) && !token.verify(&other, HERE));
        for elsewhere in [
            Audience { gateway: "gw2", ..HERE },
            Audience { site: "kyoto", ..HERE },
            Audience { site: "lyong", gateway: "w1" },
        ] {
            assert!(!Token::read(made(1), elsewhere).verify(&secret, elsewhere), "{elsewhere:?}");
        }
    }

    #[test]
    fn a_changed_byte_anywhere_is_noticed() {
        for at in 0..TOKEN_LEN {
            let mut bytes = made(1);
            bytes[at] ^= 1;
            assert!(!Token::read(bytes, HERE).verify(&Secret::new([1; 32]), HERE), "byte {at}");
        }
    }

    #[test]
    fn two_tokens_of_one_secret_show_nothing_in_common() {
        let make = |random| Token::make(&Secret::new([1; 32]), (7, 1_700_000_000), HERE, [random; RANDOM_LEN]);
        let (one, two) = (make(1), make(2));
        assert!((RANDOM_LEN..CLAIM_LEN).filter(|at| one[*at] == two[*at]).count() < 4);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_and_do_not_verify(bytes: [u8; TOKEN_LEN]) {
            prop_assert!(!Token::read(bytes, HERE).verify(&Secret::new([1; 32]), HERE));
        }
    }
}
