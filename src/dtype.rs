//! The element types of the protocol.
use crate::shape::elements;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dtype {
    Bool,
    Uint8,
    Uint16,
    Uint32,
    Uint64,
    Int8,
    Int16,
    Int32,
    Int64,
    Fp16,
    Bf16,
    Fp32,
    Fp64,
    /// Strings of bytes, each with its length in front: see strings.rs.
    Bytes,
}

/// Wire name and bytes per element; `BYTES` has no fixed size and can lie anywhere.
const TABLE: [(Dtype, &str, usize); 14] = [
    (Dtype::Bool, "BOOL", 1),
    (Dtype::Uint8, "UINT8", 1),
    (Dtype::Uint16, "UINT16", 2),
    (Dtype::Uint32, "UINT32", 4),
    (Dtype::Uint64, "UINT64", 8),
    (Dtype::Int8, "INT8", 1),
    (Dtype::Int16, "INT16", 2),
    (Dtype::Int32, "INT32", 4),
    (Dtype::Int64, "INT64", 8),
    (Dtype::Fp16, "FP16", 2),
    (Dtype::Bf16, "BF16", 2),
    (Dtype::Fp32, "FP32", 4),
    (Dtype::Fp64, "FP64", 8),
    (Dtype::Bytes, "BYTES", 1),
];

impl Dtype {
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        TABLE.iter().find(|row| row.1 == name).map(|row| row.0)
    }

    pub(crate) fn name(self) -> &'static str {
        TABLE[self as usize].1
    }

    /// Bytes of an element, to which it is aligned; 1 for `BYTES`, whose elements tell theirs themselves.
    pub(crate) fn size(self) -> usize {
        TABLE[self as usize].2
    }

    /// Bytes of a tensor of this type and shape, which is not `BYTES`; `None` where a dimension is negative or the product
    /// leaves 63 bits.
    pub(crate) fn bytes(self, shape: &[i64]) -> Option<usize> {
        elements(shape)?.checked_mul(self.size()).filter(|&bytes| i64::try_from(bytes).is_ok())
    }
}
