//! TLS of the gRPC door (`--grpc-use-ssl`).
use std::sync::Arc;

use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        RootCertStore, ServerConfig,
        crypto::ring,
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
        server::WebPkiClientVerifier,
    },
};

use crate::error::{Error, Result};

/// Accepts connections with the certificate and key of two PEM files. With a third file of authorities, clients must have a
/// certificate that one of them signed.
///
/// # Errors
/// `InvalidArgument` naming the file that cannot be used.
pub(crate) fn acceptor(certificate: &str, key: &str, authorities: Option<&str>) -> Result<TlsAcceptor> {
    let chain = certificates(certificate)?;
    let private = PrivateKeyDer::from_pem_file(key).map_err(|error| unusable("key", key, &error))?;
    let provider = Arc::new(ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| unusable("certificate", certificate, &error))?;
    let builder = match authorities {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let mut roots = RootCertStore::empty();
            for authority in certificates(path)? {
                roots.add(authority).map_err(|error| unusable("root certificate", path, &error))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                .build()
                .map_err(|error| unusable("root certificate", path, &error))?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let mut config = builder
        .with_single_cert(chain, private)
        .map_err(|error| unusable("certificate", certificate, &error))?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

fn certificates(path: &str) -> Result<Vec<CertificateDer<'static>>> {
    let read = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect::<std::result::Result<Vec<_>, _>>)
        .map_err(|error| unusable("certificate", path, &error))?;
    if read.is_empty() {
        return Err(Error::invalid(format!("the file '{path}' has no certificate; expected one in PEM")));
    }
    Ok(read)
}

fn unusable(what: &str, path: &str, error: &dyn std::fmt::Display) -> Error {
    Error::invalid(format!("the {what} '{path}' cannot be used: {error}; expected PEM"))
}
