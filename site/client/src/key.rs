//! A site's key, which is the site's identity. Peers know it by the fingerprint of its public half, as in ssh.

use std::fs::{File, OpenOptions, remove_file};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use ::tls::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, fingerprint};
use rcgen::{CertificateParams, DistinguishedName, KeyPair, PKCS_ED25519, PublicKeyData};
use thiserror::Error;
use types::sites::Fingerprint;
use wire::Secret;

const MAX_KEY_FILE: u64 = 64 << 10;

/// A site's private key.
pub struct SiteKey {
    pair: KeyPair,
}

/// Reasons for not being able to use a key. Each names the file.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum KeyError {
    /// There is no file.
    #[error("key {0}: there is no such file; `landbridge key` makes one")]
    Missing(PathBuf),
    /// The file cannot be read.
    #[error("key {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file cannot be written; an existing key is never overwritten.
    #[error("key {path}: {source}")]
    Write {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file holds no key.
    #[error(
        "key {path}: not an Ed25519 private key in PKCS#8 PEM ({problem}): name the file of a site's key, or another file for \
         a new one"
    )]
    Format {
        /// The file.
        path: PathBuf,
        /// The problem.
        problem: String,
    },
    /// The key cannot be made, or cannot sign.
    #[error("cannot make a key: {0}")]
    Make(String),
    /// The key does not match the sites file.
    #[error("site {site}: key {path} has fingerprint {actual}, but the sites file has {expected}: correct one of them")]
    OtherKey {
        site: String,
        /// The key file.
        path: PathBuf,
        /// The key's fingerprint.
        actual: Fingerprint,
        /// The fingerprint in the sites file.
        expected: Fingerprint,
    },
}

/// True if this file holds no key: it does not exist, or is empty because the program that made it was killed.
pub fn is_missing(path: &Path) -> bool {
    match path.symlink_metadata() {
        Ok(found) if found.is_file() => found.len() == 0,
        _ => !path.exists(),
    }
}

/// Makes a key and writes it to a new file that only its owner can read.
///
/// # Errors
/// The file already exists, and is not empty; or it cannot be written.
pub fn generate(path: &Path) -> Result<SiteKey, KeyError> {
    let key = SiteKey::random()?;
    let write = |path: &Path| {
        if is_missing(path) && path.exists() {
            remove_file(path)?;
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        let written = file.write_all(key.pair.serialize_pem().as_bytes()).and_then(|()| file.sync_all());
        // A partial key would block the next attempt.
        written.inspect_err(|_| drop(remove_file(path)))
    };
    write(path).map_err(|source| KeyError::Write { path: path.to_owned(), source })?;
    Ok(key)
}

/// Reads a key.
///
/// # Errors
/// The file cannot be read, or is not an Ed25519 key in PKCS#8 PEM.
pub fn load(path: &Path) -> Result<SiteKey, KeyError> {
    let mut text = String::new();
    File::open(path).and_then(|file| file.take(MAX_KEY_FILE).read_to_string(&mut text)).map_err(
        |source| match source.kind() {
            io::ErrorKind::NotFound => KeyError::Missing(path.to_owned()),
            _ => KeyError::Read { path: path.to_owned(), source },
        },
    )?;
    let format = |problem: String| KeyError::Format { path: path.to_owned(), problem };
    let pair = KeyPair::from_pem(&text).map_err(|e| format(e.to_string()))?;
    if pair.algorithm() != &PKCS_ED25519 {
        return Err(format("another algorithm".into()));
    }
    Ok(SiteKey { pair })
}

impl SiteKey {
    /// Makes a new key that is in no file.
    ///
    /// # Errors
    /// The system provides no random numbers.
    pub fn random() -> Result<SiteKey, KeyError> {
        let pair = KeyPair::generate_for(&PKCS_ED25519).map_err(|e| KeyError::Make(e.to_string()))?;
        Ok(SiteKey { pair })
    }

    /// The fingerprint by which peers know this key.
    pub fn fingerprint(&self) -> Fingerprint {
        fingerprint(&self.pair.subject_public_key_info())
    }

    /// The secret that users of the site prove to its gateway. It is derived from the private key, so anybody who can
    /// read the key file is a user.
    pub fn client_secret(&self) -> Secret {
        Secret::derive(self.pair.serialized_der(), "client")
    }

    /// A self-signed certificate of this key, and the key, in the form that TLS needs. Only the key in it matters.
    /// # Errors
    /// [`KeyError::Make`].
    pub(crate) fn certificate(&self) -> Result<(CertificateDer<'static>, PrivateKeyDer<'static>), KeyError> {
        let make = |e: rcgen::Error| KeyError::Make(e.to_string());
        let mut params = CertificateParams::new(vec!["landbridge".to_owned()]).map_err(make)?;
        params.distinguished_name = DistinguishedName::new();
        let certificate = params.self_signed(&self.pair).map_err(make)?;
        let key = PrivatePkcs8KeyDer::from(self.pair.serialized_der().to_vec());
        Ok((certificate.der().clone(), key.into()))
    }
}

impl std::fmt::Debug for SiteKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SiteKey({})", self.fingerprint())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn a_key_survives_its_file_and_is_not_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("site.key");
        let made = generate(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        let read = load(&path).unwrap();
        assert_eq!(read.fingerprint(), made.fingerprint());
        assert_eq!(read.client_secret(), made.client_secret());
        assert!(matches!(generate(&path), Err(KeyError::Write { .. })));
        assert_eq!(load(&path).unwrap().fingerprint(), made.fingerprint());
        // An earlier attempt was killed before it wrote anything.
        std::fs::write(&path, "").unwrap();
        assert!(is_missing(&path) && generate(&path).is_ok() && !is_missing(&path) && load(&path).is_ok());
    }

    #[test]
    fn what_is_no_key_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let missing = folder.path().join("missing.key");
        assert!(load(&missing).unwrap_err().to_string().contains("missing.key"));
        let text = folder.path().join("text.key");
        std::fs::write(&text, "hello").unwrap();
        assert!(matches!(load(&text), Err(KeyError::Format { .. })));
    }

    #[test]
    fn two_keys_differ() {
        let (one, two) = (SiteKey::random().unwrap(), SiteKey::random().unwrap());
        assert_ne!(one.fingerprint(), two.fingerprint());
        assert_ne!(one.client_secret(), two.client_secret());
    }
}
