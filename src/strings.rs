//! BYTES tensors: elements one after another in row-major order, each 4 bytes of little-endian length and as many bytes.
use std::fmt;

/// Bytes of the length in front of every element.
const PREFIX: usize = 4;

/// Why bytes are no BYTES tensor of so many elements.
#[derive(Debug, PartialEq)]
pub(crate) enum Malformed {
    /// Bytes that are left for the length of an element.
    Length(usize),
    /// What the length of an element says, and the bytes that are left for it.
    Content(usize, usize),
    /// Elements that there are.
    TooFew(usize),
    /// Bytes that follow the last element.
    TooMany(usize),
}

/// Elements of a BYTES tensor; ends where the bytes end or make no sense.
#[derive(Clone)]
pub(crate) struct Elements<'a> {
    rest: &'a [u8],
}

impl<'a> Elements<'a> {
    pub(crate) fn new(tensor: &'a [u8]) -> Self {
        Self { rest: tensor }
    }

    fn step(&mut self) -> Result<&'a [u8], Malformed> {
        let (prefix, rest) = self.rest.split_first_chunk().ok_or(Malformed::Length(self.rest.len()))?;
        let length = u32::from_le_bytes(*prefix) as usize;
        let (element, rest) = rest.split_at_checked(length).ok_or(Malformed::Content(length, rest.len()))?;
        self.rest = rest;
        Ok(element)
    }
}

impl<'a> Iterator for Elements<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        self.step().ok()
    }
}

/// Bytes of the first `count` elements.
///
/// # Errors
/// `Malformed` where there are not so many.
pub(crate) fn prefix(tensor: &[u8], count: usize) -> Result<usize, Malformed> {
    let mut elements = Elements::new(tensor);
    for found in 0..count {
        if elements.rest.is_empty() {
            return Err(Malformed::TooFew(found));
        }
        elements.step()?;
    }
    Ok(tensor.len() - elements.rest.len())
}

/// Whether these are just `count` elements.
///
/// # Errors
/// `Malformed` where they are not.
pub(crate) fn check(tensor: &[u8], count: usize) -> Result<(), Malformed> {
    match tensor.len() - prefix(tensor, count)? {
        0 => Ok(()),
        left => Err(Malformed::TooMany(left)),
    }
}

/// Appends an element.
///
/// # Errors
/// A text for one that is longer than its length can say.
pub(crate) fn push(tensor: &mut Vec<u8>, element: &[u8]) -> Result<(), String> {
    let length = u32::try_from(element.len())
        .map_err(|_| format!("a BYTES element of {} bytes is over 4 GiB", element.len()))?;
    tensor.extend_from_slice(&length.to_le_bytes());
    tensor.extend_from_slice(element);
    Ok(())
}

/// Bytes that elements of these lengths take.
pub(crate) fn packed_size(lengths: impl Iterator<Item = usize>) -> usize {
    lengths.map(|length| PREFIX + length).sum()
}

impl Malformed {
    /// In Triton's words; `of` names the tensor and `expected` is its number of elements.
    pub(crate) fn describe(&self, expected: usize, of: impl fmt::Display) -> String {
        match self {
            Self::Length(left) => format!(
                "incomplete string length indicator for {of}, expecting {PREFIX} bytes but only {left} bytes available"
            ),
            Self::Content(length, left) => format!(
                "incomplete string data for {of}, expecting string of length {length} but only {left} bytes available"
            ),
            Self::TooFew(found) => format!("expected {expected} string elements for {of}, got {found}"),
            Self::TooMany(left) => format!(
                "unexpected number of string elements for {of}, expecting {expected}, after which {left} bytes are left"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(elements: &[&[u8]]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for element in elements {
            push(&mut bytes, element).unwrap();
        }
        bytes
    }

    #[test]
    fn elements_come_back() {
        let elements: [&[u8]; 4] = [b"a", b"", b"\xff\x00", b"longer than four"];
        let bytes = tensor(&elements);
        assert_eq!(Elements::new(&bytes).collect::<Vec<_>>(), elements);
        assert_eq!(check(&bytes, 4), Ok(()));
        assert_eq!(prefix(&bytes, 2), Ok(9));
        assert_eq!(packed_size(elements.iter().map(|element| element.len())), bytes.len());
        assert_eq!(check(&[], 0), Ok(()));
    }

    #[test]
    fn bytes_that_lie_are_malformed() {
        let bytes = tensor(&[b"ab", b"cd"]);
        assert_eq!(check(&bytes, 3), Err(Malformed::TooFew(2)));
        assert_eq!(check(&bytes, 1), Err(Malformed::TooMany(6)));
        assert_eq!(check(&bytes[..8], 2), Err(Malformed::Length(2)));
        assert_eq!(check(&bytes[..11], 2), Err(Malformed::Content(2, 1)));
        assert_eq!(check(b"\xff\xff\xff\xff", 1), Err(Malformed::Content(u32::MAX as usize, 0)));
        assert_eq!(check(&[], usize::MAX), Err(Malformed::TooFew(0)));
    }
}
