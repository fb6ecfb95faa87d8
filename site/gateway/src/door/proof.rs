//! Proofs of connections that are not admitted yet: the secret that a token was made with, and its owner.

use types::JobId;
use wire::handshake::{Hello, Purpose};
use wire::token::{Audience, TOKEN_LEN};
use wire::{Secret, Token};

use crate::door::Door;
use crate::door::tokens::Credential;

/// Number of secrets above which tokens of secrets that are no longer in use are forgotten.
const SECRETS: usize = 1024;

impl Door {
    /// Returns the owner of the secret that a token in a ClientHello proves; `None` if it proves nothing.
    pub(super) fn credential(&self, token: [u8; TOKEN_LEN]) -> Option<Credential> {
        let here = Audience { site: &self.sites.site, gateway: &self.sites.gateway };
        let token = Token::read(token, here);
        let (credential, secret) = match JobId(token.key) {
            JobId(0) => (Credential::User, self.sites.credentials().client_secret.clone()),
            job => (Credential::Job(job), self.path.table.read().secret(job).ok()?),
        };
        self.verified(credential, &token, &secret, here)
    }

    /// Returns the owner of the secret that the token in a hello without TLS proves; `None` if it proves nothing.
    pub(super) fn credential_of(&self, hello: &Hello) -> Option<Credential> {
        let addressed = Audience { site: &hello.site, gateway: &hello.gateway };
        let (credential, secret) = match hello.purpose {
            Purpose::Member => (Credential::Job(hello.job), self.path.table.read().secret(hello.job).ok()?),
            Purpose::Meet => {
                let meetings = &self.trunks.host;
                (Credential::Meeting(hello.job), meetings.secret(hello.job, &hello.site, &hello.gateway)?)
            }
            _ => return None,
        };
        self.verified(credential, &Token::read(hello.nonce, addressed), &secret, addressed)
    }

    fn verified(
        &self,
        credential: Credential,
        token: &Token,
        secret: &Secret,
        audience: Audience<'_>,
    ) -> Option<Credential> {
        if !token.verify(secret, audience) {
            return None;
        }
        if self.tokens.secrets() > SECRETS {
            let table = self.path.table.read();
            self.tokens.retain(|credential| match credential {
                Credential::Job(job) => table.jobs.contains_key(&job),
                Credential::Meeting(_) => false,
                Credential::User => true,
            });
        }
        self.tokens.is_fresh(credential, token).then_some(credential)
    }
}
