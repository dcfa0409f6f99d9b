//! TLS: a certificate and its key, which may be read anew while the server runs.

use std::sync::{Arc, PoisonError, RwLock};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{self, ServerConfig};

/// A certificate, and what proves that it is the server's.
#[derive(Clone)]
pub struct Tls(Arc<ServerConfig>);

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tls")
    }
}

/// Why there can be no TLS.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// No certificates.
    #[error("there is no certificate in PEM form (-----BEGIN CERTIFICATE-----) in the file of certificates")]
    NoCertificate,
    /// Something else.
    #[error("the file of certificates cannot be read as PEM: {0}")]
    Certificate(String),
    /// No key.
    #[error("there is no private key in PEM form (-----BEGIN PRIVATE KEY-----) in the key's file: {0}")]
    NoKey(String),
    /// They are damaged, of a kind that is not known, or do not belong together.
    #[error("certificate and key do not work together: {0}")]
    Pair(#[source] rustls::Error),
}

impl Tls {
    /// Takes a chain of certificates, the server's own first, and its private key, both in PEM form.
    ///
    /// # Errors
    /// They are not there, or do not belong together.
    pub fn from_pem(certificates: &[u8], key: &[u8]) -> Result<Tls, TlsError> {
        let chain = CertificateDer::pem_slice_iter(certificates).collect::<Result<Vec<_>, _>>();
        let chain = chain.map_err(|error| TlsError::Certificate(error.to_string()))?;
        if chain.is_empty() {
            return Err(TlsError::NoCertificate);
        }
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| TlsError::NoKey(error.to_string()))?;
        let builder = ServerConfig::builder_with_provider(Arc::new(default_provider()));
        let builder = builder.with_safe_default_protocol_versions().map_err(TlsError::Pair)?;
        let mut config = builder.with_no_client_auth().with_single_cert(chain, key).map_err(TlsError::Pair)?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Tls(Arc::new(config)))
    }
}

/// The certificate in use.
#[derive(Debug, Default)]
pub(crate) struct Certificate(RwLock<Option<Tls>>);

impl Certificate {
    pub(crate) fn new(tls: Option<Tls>) -> Certificate {
        Certificate(RwLock::new(tls))
    }

    /// Takes another one for connections from now on.
    pub(crate) fn set(&self, tls: Tls) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Some(tls);
    }

    /// What speaks TLS on a connection, if it is to be spoken.
    pub(crate) fn acceptor(&self) -> Option<TlsAcceptor> {
        let tls = self.0.read().unwrap_or_else(PoisonError::into_inner);
        tls.as_ref().map(|tls| TlsAcceptor::from(tls.0.clone()))
    }
}
