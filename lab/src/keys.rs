//! A site's key pair and its fingerprint.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rcgen::{KeyPair, PKCS_ED25519, PublicKeyData};
use sha2::{Digest, Sha256};

use crate::error::LabError;

/// Makes an Ed25519 key, writes it to `path` (PKCS#8 PEM, mode 0600, never over an existing file) and returns its
/// fingerprint: `sha256:` and the hexadecimal SHA-256 of the public key's SubjectPublicKeyInfo (DER, RFC 8410).
///
/// # Errors
/// [`LabError::Setup`] naming the file.
pub fn create(path: &Path) -> Result<String, LabError> {
    let place = || format!("key {}", path.display());
    let pair = KeyPair::generate_for(&PKCS_ED25519).map_err(|e| LabError::setup(place(), e))?;
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .map_err(|e| LabError::setup(place(), e))?;
    file.write_all(pair.serialize_pem().as_bytes()).map_err(|e| LabError::setup(place(), e))?;
    let digest = Sha256::digest(pair.subject_public_key_info());
    let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("sha256:{hex}"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn private_file_and_fingerprint_of_its_public_key() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.key");
        let fingerprint = create(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let pem = std::fs::read_to_string(&path).unwrap();
        assert!(pem.starts_with("-----BEGIN PRIVATE KEY-----"), "{pem}");
        let pair = KeyPair::from_pem(&pem).unwrap();
        let spki = pair.subject_public_key_info();
        assert_eq!(spki.len(), 44, "an Ed25519 SubjectPublicKeyInfo has 44 bytes (RFC 8410)");
        let hex: String = Sha256::digest(spki).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(fingerprint, format!("sha256:{hex}"));
        assert!(create(&path).unwrap_err().to_string().contains("exists"), "never overwritten");
    }
}
