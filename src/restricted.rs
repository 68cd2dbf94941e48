//! Verbs that need a header with a secret (`--http-restricted-api`, `--grpc-restricted-protocol`).
use std::collections::HashMap;

use http::HeaderMap;

use crate::error::{Error, Kind, Result};

/// A header and the value it must have.
#[derive(Clone, Debug)]
pub(crate) struct Secret {
    header: String,
    value: String,
}

/// What a door asks for, by category of verbs.
#[derive(Debug, Default)]
pub(crate) struct Restricted(HashMap<String, Secret>);

impl Restricted {
    /// From rows of category, header and value; the rows were checked where options are read.
    pub(crate) fn new(rows: Vec<(String, String, String)>) -> Self {
        Self(rows.into_iter().map(|(category, header, value)| (category, Secret { header, value })).collect())
    }

    /// # Errors
    /// `Restricted` with Triton's text when the verb is restricted and the header is missing or has another value.
    pub(crate) fn check(&self, verb: &str, headers: &HeaderMap, what: &str) -> Result<()> {
        if self.0.is_empty() {
            return Ok(());
        }
        let Some(secret) = category(verb).and_then(|name| self.0.get(name)) else { return Ok(()) };
        match headers.get(&secret.header) {
            Some(given) if equal(given.as_bytes(), secret.value.as_bytes()) => Ok(()),
            _ => Err(Error::new(
                Kind::Restricted,
                format!("This {what} is restricted, expecting header '{}'", secret.header),
            )),
        }
    }
}

/// Triton's category of an RPC; a verb of HTTP has the name of its RPC.
fn category(verb: &str) -> Option<&'static str> {
    Some(match verb {
        "ServerLive" | "ServerReady" | "ModelReady" => "health",
        "ServerMetadata" | "ModelMetadata" => "metadata",
        "ModelInfer" | "ModelStreamInfer" | "Generate" => "inference",
        "ModelConfig" => "model-config",
        "ModelStatistics" => "statistics",
        "TraceSetting" => "trace",
        "LogSettings" => "logging",
        _ if verb.starts_with("Repository") => "model-repository",
        _ if verb.contains("SharedMemory") => "shared-memory",
        _ => return None,
    })
}

/// Takes as long for every wrong value of the right length.
fn equal(given: &[u8], wanted: &[u8]) -> bool {
    let differences = given.iter().zip(wanted).fold(0, |sum, (left, right)| sum | (left ^ right));
    given.len() == wanted.len() && differences == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn restricted() -> Restricted {
        Restricted::new(vec![("metadata".into(), "secret".into(), "open".into())])
    }

    fn with(value: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(
            http::HeaderName::from_static("secret"),
            http::HeaderValue::from_static(value),
        )])
    }

    #[test]
    fn only_the_right_value_opens() {
        assert!(restricted().check("ServerMetadata", &with("open"), "API").is_ok());
        for wrong in ["", "opem", "ope", "opens"] {
            assert!(restricted().check("ModelMetadata", &with(wrong), "API").is_err(), "{wrong}");
        }
        assert!(restricted().check("ServerMetadata", &HeaderMap::new(), "API").is_err());
    }

    #[test]
    fn other_categories_stay_open() {
        assert!(restricted().check("ModelInfer", &HeaderMap::new(), "API").is_ok());
        assert!(Restricted::default().check("ServerMetadata", &HeaderMap::new(), "API").is_ok());
    }
}
