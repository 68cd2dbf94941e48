//! Parameters of requests: which of them mean something, what they may be, and which nobody may give.
use serde_json::Value;

use crate::error::{Error, Result};

/// A parameter, as far as it matters here.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Parameter {
    Bool,
    Signed(i64),
    Unsigned,
    Double,
    String,
    /// Null, a list, an object, or nothing.
    Other,
}

impl Parameter {
    pub(crate) fn of_json(value: &Value) -> Self {
        match value {
            Value::Bool(_) => Self::Bool,
            Value::String(_) => Self::String,
            Value::Number(number) => match (number.as_i64(), number.is_u64()) {
                (Some(value), _) => Self::Signed(value),
                (None, true) => Self::Unsigned,
                (None, false) => Self::Double,
            },
            Value::Null | Value::Array(_) | Value::Object(_) => Self::Other,
        }
    }

    fn is_unsigned(self) -> bool {
        matches!(self, Self::Unsigned | Self::Signed(0..))
    }

    fn is_integer(self) -> bool {
        matches!(self, Self::Unsigned | Self::Signed(_))
    }
}

/// Keys that are the server's own.
const RESERVED: &str = "triton_";
/// The one of them that a client of gRPC may give.
const FINAL_RESPONSE: &str = "triton_enable_empty_final_response";

/// What all doors ask of a parameter that means something; what others mean is up to the backend.
fn check(key: &str, value: Parameter) -> Result<()> {
    let (right, expected) = match key {
        "sequence_id" => (value.is_integer() || value == Parameter::String, "an integer or a string"),
        "sequence_start" | "sequence_end" | FINAL_RESPONSE => (value == Parameter::Bool, "a bool"),
        "priority" | "timeout" => (value.is_unsigned(), "an unsigned integer (expected value >= 0)"),
        _ => (value != Parameter::Other, "an integer, a bool, a double or a string"),
    };
    if right {
        return Ok(());
    }
    Err(Error::invalid(format!("invalid value type for '{key}' parameter, expected {expected}")))
}

/// # Errors
/// `InvalidArgument` naming the first parameter of a request that is wrong.
pub(crate) fn check_http<'a>(parameters: impl Iterator<Item = (&'a str, Parameter)>) -> Result<()> {
    for (key, value) in parameters {
        if key.starts_with(RESERVED) {
            return Err(Error::invalid(format!(
                "parameter '{key}': parameter keys starting with '{RESERVED}' are reserved for Triton usage and should not be specified"
            )));
        }
        check(key, value)?;
    }
    Ok(())
}

/// # Errors
/// `InvalidArgument` naming the first parameter of a request that is wrong.
pub(crate) fn check_grpc<'a>(parameters: impl Iterator<Item = (&'a str, Parameter)>) -> Result<()> {
    for (key, value) in parameters {
        if key != FINAL_RESPONSE && key.starts_with(RESERVED) {
            return Err(Error::invalid(format!(
                "parameter '{key}': parameter keys starting with '{RESERVED}' are reserved for Triton usage. Only {FINAL_RESPONSE} is allowed"
            )));
        }
        check(key, value)?;
    }
    Ok(())
}

/// A JSON object of these parameters for the backend; empty when there are none.
pub(crate) fn text_of<'a>(parameters: impl Iterator<Item = (&'a str, Value)>) -> String {
    let object: serde_json::Map<String, Value> =
        parameters.map(|(key, value)| (key.to_owned(), value)).collect();
    if object.is_empty() { String::new() } else { Value::Object(object).to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn http(key: &str, json: &str) -> bool {
        check_http([(key, Parameter::of_json(&serde_json::from_str(json).unwrap()))].into_iter()).is_ok()
    }

    #[test]
    fn values_are_of_the_kinds_that_triton_takes() {
        for (key, json) in
            [("a", "-1"), ("a", "18446744073709551615"), ("a", "1.5"), ("a", "\"\""), ("priority", "3")]
        {
            assert!(http(key, json), "{key} {json}");
        }
        for (key, json) in [
            ("a", "null"),
            ("a", "[1]"),
            ("a", "{}"),
            ("priority", "-1"),
            ("timeout", "\"1\""),
            ("timeout", "1.5"),
        ] {
            assert!(!http(key, json), "{key} {json}");
        }
        for (key, json) in
            [("sequence_id", "true"), ("sequence_start", "1"), ("triton_x", "1"), (FINAL_RESPONSE, "true")]
        {
            assert!(!http(key, json), "{key} {json}");
        }
        assert!(http("sequence_id", "\"x\"") && http("sequence_id", "7") && http("sequence_end", "true"));
        assert!(check_grpc([(FINAL_RESPONSE, Parameter::Bool)].into_iter()).is_ok());
        assert!(check_grpc([(FINAL_RESPONSE, Parameter::String)].into_iter()).is_err());
        assert!(check_grpc([("triton_x", Parameter::Bool)].into_iter()).is_err());
    }
}
