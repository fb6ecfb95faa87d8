//! Freshness of admission tokens. A token counts if its secret is known and it was not seen before.
//!
//! A token contains its maker's clock. This code compares the clocks of two machines only once: a gateway that has just
//! started has forgotten the tokens it has seen, so a token made more than [`LAG`] before the start does not count.
//! From then on the gateway remembers every token that verified, so only holders of a secret can fill its memory. When
//! the memory is full, the gateway forgets the oldest token of the secret with the most tokens, and tokens of that
//! secret that are not younger stop counting. A peer with such a token, like one whose clock is far behind, is not
//! refused but counts as unproven.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};

use types::JobId;
use wire::Token;
use wire::token::RANDOM_LEN;

/// Approximate cost in bytes of a remembered token.
const COST: u64 = 64;
/// Bounds on the number of tokens that are remembered; it depends on the memory.
const LEAST: u64 = 1 << 14;
const MOST: u64 = 1 << 18;
/// Seconds by which the clock of a peer may be behind the gateway's when the gateway starts.
const LAG: u32 = 300;

/// Owner of the secret that a token was made with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Credential {
    /// The site's key: a user.
    User,
    /// A job's secret: an agent or a rank.
    Job(JobId),
    /// The secret of a seat at a meeting here.
    Meeting(JobId),
}

/// The tokens that were seen and are remembered.
#[derive(Debug)]
pub(crate) struct Tokens {
    most: usize,
    /// When the gateway started, by its own clock.
    started: u32,
    seen: RefCell<HashMap<Credential, Seen>>,
}

#[derive(Debug, Default)]
struct Seen {
    /// Seconds by the maker's clock, and the token's random bytes.
    tokens: BTreeSet<(u32, [u8; RANDOM_LEN])>,
    /// A token counts only if it is younger than this, in seconds since 1970.
    after: u32,
}

impl Tokens {
    /// `memory`: the gateway's configured memory in bytes; tokens may use a 256th of it. `now`: seconds since 1970.
    pub(crate) fn new(memory: u64, now: u64) -> Tokens {
        let most = (memory / 256 / COST).clamp(LEAST, MOST) as usize;
        Tokens { most, started: now as u32, seen: RefCell::default() }
    }

    /// Notes a token that verified with this credential's secret. Returns true if the token is fresh: nobody can have
    /// sent it before.
    pub(crate) fn is_fresh(&self, credential: Credential, token: &Token) -> bool {
        let mut all = self.seen.borrow_mut();
        let after = self.started.saturating_sub(LAG);
        let seen = all.entry(credential).or_insert_with(|| Seen { after, ..Seen::default() });
        let fresh = token.seconds > seen.after && seen.tokens.insert((token.seconds, token.random()));
        if fresh && all.values().map(|seen| seen.tokens.len()).sum::<usize>() > self.most {
            let largest = all.values_mut().max_by_key(|seen| seen.tokens.len());
            if let Some(seen) = largest
                && let Some((seconds, _)) = seen.tokens.pop_first()
            {
                seen.after = seen.after.max(seconds);
            }
        }
        fresh
    }

    /// Forgets the tokens of secrets that are no longer in use.
    pub(crate) fn retain(&self, is_used: impl Fn(Credential) -> bool) {
        self.seen.borrow_mut().retain(|credential, _| is_used(*credential));
    }

    /// Number of secrets with remembered tokens.
    pub(crate) fn secrets(&self) -> usize {
        self.seen.borrow().len()
    }
}

#[cfg(test)]
mod tests {
    use wire::Secret;
    use wire::token::Audience;

    use super::*;

    const NOW: u64 = 1_700_000_000;
    const HERE: Audience<'_> = Audience { site: "lyon", gateway: "gw1" };
    const JOB: Credential = Credential::Job(JobId(7));

    fn token(number: u32, seconds: u64) -> Token {
        let mut random = [0; RANDOM_LEN];
        random[..4].copy_from_slice(&number.to_le_bytes());
        Token::read(Token::make(&Secret::new([1; 32]), (7, seconds), HERE, random), HERE)
    }

    #[test]
    fn a_token_proves_something_once() {
        let tokens = Tokens::new(64 << 20, NOW);
        for credential in [Credential::User, JOB] {
            assert!(tokens.is_fresh(credential, &token(1, NOW)));
            assert!(!tokens.is_fresh(credential, &token(1, NOW)));
            assert!(tokens.is_fresh(credential, &token(2, NOW)));
        }
    }

    #[test]
    fn a_token_from_before_the_start_may_be_a_recorded_one() {
        let tokens = Tokens::new(64 << 20, NOW);
        for credential in [Credential::User, JOB] {
            assert!(!tokens.is_fresh(credential, &token(1, NOW - 3600)));
            assert!(tokens.is_fresh(credential, &token(2, NOW - 60)), "clocks differ a little");
            assert!(tokens.is_fresh(credential, &token(3, NOW + 86_400 * 365)), "and some are far ahead");
        }
    }

    #[test]
    fn what_was_forgotten_proves_nothing_and_the_memory_is_bounded() {
        let tokens = Tokens::new(0, NOW);
        let most = LEAST as u32;
        assert!(tokens.is_fresh(Credential::User, &token(0, NOW)));
        for number in 0..2 * most {
            assert!(tokens.is_fresh(JOB, &token(number, NOW + u64::from(number))));
        }
        assert_eq!(tokens.seen.borrow().values().map(|seen| seen.tokens.len()).sum::<usize>(), most as usize);
        for number in [0, most / 2, most, 2 * most - 1] {
            assert!(!tokens.is_fresh(JOB, &token(number, NOW + u64::from(number))), "{number}");
        }
        assert!(!tokens.is_fresh(Credential::User, &token(0, NOW)), "the users' is remembered");
        tokens.retain(|credential| credential == Credential::User);
        assert_eq!(tokens.secrets(), 1);
    }
}
