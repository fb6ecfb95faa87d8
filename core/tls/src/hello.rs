//! The token in a ClientHello: 32 bytes in place of the server name. An acceptor reads them before it starts any
//! cryptography.
//!
//! The name has two labels, each a letter and 32 hexadecimal digits. It names no host, and it is not encrypted.

use std::fmt::Write;

use rustls::server::Acceptor;

/// Length of a token in bytes.
pub const TOKEN_LEN: usize = 32;
/// The longest record with a ClientHello that is searched for a token, in bytes. Our own have about 320.
pub const MAX_HELLO: usize = 2048;
/// A label must not look like a number, so it begins with a letter.
const LETTER: char = 'x';
const HEADER: usize = 5;

/// The server name that carries a token.
pub(crate) fn name(token: &[u8; TOKEN_LEN]) -> String {
    let mut name = String::with_capacity(2 * TOKEN_LEN + 3);
    for half in token.chunks(TOKEN_LEN / 2) {
        if !name.is_empty() {
            name.push('.');
        }
        name.push(LETTER);
        for byte in half {
            // Writing to a string cannot fail.
            let _ = write!(name, "{byte:02x}");
        }
    }
    name
}

/// The token in the first bytes of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HelloToken {
    /// More bytes are needed, up to [`MAX_HELLO`] in all.
    Partial,
    /// The token.
    Token([u8; TOKEN_LEN]),
    /// No token. [`Session`](crate::Session) decides whether the bytes are a ClientHello at all.
    None,
}

/// Finds the token in a peer's first bytes.
pub fn hello_token(bytes: &[u8]) -> HelloToken {
    let Some(header) = bytes.get(..HEADER) else { return HelloToken::Partial };
    let end = HEADER + usize::from(u16::from_be_bytes([header[3], header[4]]));
    if end > MAX_HELLO {
        return HelloToken::None;
    }
    let Some(mut record) = bytes.get(..end) else { return HelloToken::Partial };
    let mut acceptor = Acceptor::default();
    while !record.is_empty() {
        if !matches!(acceptor.read_tls(&mut record), Ok(1..)) {
            return HelloToken::None;
        }
    }
    let accepted = match acceptor.accept() {
        Ok(Some(accepted)) => accepted,
        // A ClientHello in several records, which our programs never send, or no ClientHello.
        Ok(None) | Err(_) => return HelloToken::None,
    };
    let hello = accepted.client_hello();
    hello.server_name().and_then(token).map_or(HelloToken::None, HelloToken::Token)
}

/// The token in a server name.
fn token(name: &str) -> Option<[u8; TOKEN_LEN]> {
    let (one, two) = name.split_once('.')?;
    let mut token = [0; TOKEN_LEN];
    for (label, half) in [one, two].into_iter().zip(token.chunks_mut(TOKEN_LEN / 2)) {
        let digits = label.strip_prefix(LETTER)?.as_bytes();
        if digits.len() != TOKEN_LEN || !digits.iter().all(u8::is_ascii_hexdigit) {
            return None;
        }
        for (byte, pair) in half.iter_mut().zip(digits.chunks(2)) {
            *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
        }
    }
    Some(token)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dial_without_key;

    fn hello(token: Option<&[u8; TOKEN_LEN]>) -> Vec<u8> {
        let mut bytes = Vec::new();
        dial_without_key(token).unwrap().open(&mut [], &mut |_| {}, &mut bytes).unwrap();
        bytes
    }

    #[test]
    fn a_token_is_found_once_the_hello_is_whole() {
        // Labels of digits only would not be a name.
        for sent in [[0x77; TOKEN_LEN], [0; TOKEN_LEN], std::array::from_fn(|at| (at * 9) as u8)] {
            let bytes = hello(Some(&sent));
            assert!(bytes.len() < 400, "{}", bytes.len());
            for cut in 0..bytes.len() {
                assert_eq!(hello_token(&bytes[..cut]), HelloToken::Partial, "{cut}");
            }
            assert_eq!(hello_token(&bytes), HelloToken::Token(sent));
            let more = [&bytes[..], &[7; 100]].concat();
            assert_eq!(hello_token(&more), HelloToken::Token(sent));
        }
    }

    #[test]
    fn without_a_token_no_name_is_sent() {
        let bytes = hello(None);
        assert_eq!(hello_token(&bytes), HelloToken::None);
        // The extension `server_name` has number 0; with a token, its length is 72.
        assert!(!bytes.windows(4).any(|window| window == [0, 0, 0, 72]));
        assert!(hello(Some(&[7; TOKEN_LEN])).windows(4).any(|window| window == [0, 0, 0, 72]));
    }

    #[test]
    fn other_names_and_other_bytes_are_no_tokens() {
        for name in ["landbridge", "a.b", &"x".repeat(67), &format!("x{0}.y{0}", "0".repeat(32))] {
            assert_eq!(token(name), None, "{name}");
        }
        assert_eq!(hello_token(&[0x16, 3, 1, 0xff, 0xff]), HelloToken::None, "a record longer than a hello");
        for seed in 0..200u32 {
            let mut bytes: Vec<u8> = (0..300u32).map(|i| (i.wrapping_mul(seed * 2 + 1) >> 3) as u8).collect();
            bytes[..5].copy_from_slice(&[0x16, 3, 1, 0, 200]);
            assert_eq!(hello_token(&bytes), HelloToken::None);
        }
    }
}
