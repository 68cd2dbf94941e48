//! The one error table: every kind of failure with the status it gets at each door.
use pyo3::prelude::*;

/// Why a call failed, in Triton's terms (`TRITONSERVER_Error_Code`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Unknown,
    Internal,
    NotFound,
    InvalidArgument,
    Unavailable,
    Unsupported,
    AlreadyExists,
    Cancelled,
    /// The verb needs a secret that the request does not have.
    Restricted,
}

pub(crate) const KINDS: usize = 9;
/// Name in Python, gRPC code, HTTP status. Python's `core.errors` is built from these rows.
const TABLE: [(Kind, &str, u8, u16); KINDS] = [
    (Kind::Unknown, "UNKNOWN", 2, 400),
    (Kind::Internal, "INTERNAL", 13, 500),
    (Kind::NotFound, "NOT_FOUND", 5, 404),
    (Kind::InvalidArgument, "INVALID_ARGUMENT", 3, 400),
    (Kind::Unavailable, "UNAVAILABLE", 14, 503),
    (Kind::Unsupported, "UNSUPPORTED", 12, 501),
    (Kind::AlreadyExists, "ALREADY_EXISTS", 6, 400),
    (Kind::Cancelled, "CANCELLED", 1, 400),
    (Kind::Restricted, "RESTRICTED", 14, 403),
];

impl Kind {
    pub(crate) fn grpc(self) -> u8 {
        TABLE[self as usize].2
    }

    pub(crate) fn http(self) -> u16 {
        TABLE[self as usize].3
    }

    /// All names, in the order of the kinds.
    pub(crate) fn names() -> [&'static str; KINDS] {
        TABLE.map(|row| row.1)
    }

    /// The kind of a name of the table; a name that is not in it is a bug of the caller and reads as `Internal`.
    pub(crate) fn from_name(name: &str) -> Self {
        TABLE.iter().find(|row| row.1 == name).map_or(Self::Internal, |row| row.0)
    }
}

/// The rows of the table for Python: `(name, gRPC code, HTTP status)`.
#[pyfunction]
pub(crate) fn error_table() -> Vec<(&'static str, u8, u16)> {
    TABLE.iter().map(|row| (row.1, row.2, row.3)).collect()
}

#[derive(Clone, Debug)]
pub(crate) struct Error {
    pub(crate) kind: Kind,
    pub(crate) message: String,
}

impl Error {
    pub(crate) fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(Kind::InvalidArgument, message)
    }

    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self::new(Kind::NotFound, message)
    }

    pub(crate) fn unsupported(message: impl Into<String>) -> Self {
        Self::new(Kind::Unsupported, message)
    }

    pub(crate) fn unavailable(message: impl Into<String>) -> Self {
        Self::new(Kind::Unavailable, message)
    }

    /// As Triton's core words an error of one request: with the request's id in front when it has one.
    pub(crate) fn of_request(self, id: &str) -> Self {
        if id.is_empty() {
            self
        } else {
            Self { message: format!("[request id: {id}] {}", self.message), ..self }
        }
    }
}

pyo3::create_exception!(_wire, WireError, pyo3::exceptions::PyException, "`args` are (kind name, message).");

impl From<Error> for PyErr {
    fn from(error: Error) -> Self {
        WireError::new_err((TABLE[error.kind as usize].1, error.message))
    }
}

pub(crate) type Result<T> = std::result::Result<T, Error>;
