//! The elements of tensors in JSON: numbers, strings and lists of them.
//!
//! JSON has no NaN and no infinities. Like Triton this reads and writes the bare words `NaN`, `Infinity` and `-Infinity`, and reads
//! them as strings, too, which is how protobuf has them in JSON.
use std::{borrow::Cow, fmt, io::Write};

use serde::{
    Deserializer, Serialize,
    de::{self, DeserializeSeed, SeqAccess, Visitor},
};
use serde_json::value::RawValue;

use crate::{dtype::Dtype, strings};

/// Levels of `serde_json`.
const MOST_LISTS: usize = 128;
const NAN: &str = "NaN";
const INFINITY: &str = "Infinity";
const MINUS_INFINITY: &str = "-Infinity";

/// JSON text with the words that JSON does not have as strings; untouched when it has none.
pub(crate) fn quote_words(text: &[u8]) -> Cow<'_, [u8]> {
    let mut quoted = Vec::new();
    let (mut at, mut copied, mut in_string) = (0, 0, false);
    while at < text.len() {
        let word =
            [NAN, INFINITY, MINUS_INFINITY].into_iter().find(|word| text[at..].starts_with(word.as_bytes()));
        match (text[at], word) {
            (b'\\', _) if in_string => at += 2,
            (b'"', _) => {
                in_string = !in_string;
                at += 1;
            }
            (_, Some(word)) if !in_string => {
                quoted.extend_from_slice(&text[copied..at]);
                let _ = write!(quoted, "\"{word}\""); // a vector takes all
                at += word.len();
                copied = at;
            }
            _ => at += 1,
        }
    }
    if copied == 0 {
        return text.into();
    }
    quoted.extend_from_slice(&text[copied..]);
    quoted.into()
}

/// The bytes of a tensor that JSON has as a list.
///
/// # Errors
/// `serde_json`'s for what is no list of such elements.
pub(crate) fn read(dtype: Dtype, data: &RawValue) -> serde_json::Result<Vec<u8>> {
    if let Some(bytes) = read_numbers(dtype, data.get()) {
        return Ok(bytes);
    }
    let mut bytes = Vec::new();
    let mut reader = serde_json::Deserializer::from_str(data.get());
    reader.deserialize_seq(Elements { dtype, bytes: &mut bytes })?;
    Ok(bytes)
}

/// Numbers in lists of any depth, read at a fraction of the cost; `None` for whatever else there is, or is wrong: it is read
/// again, and told, by `Elements`. The text is known to be JSON.
fn read_numbers(dtype: Dtype, json: &str) -> Option<Vec<u8>> {
    macro_rules! numbers {
        ($type:ty) => {
            parse_all(json, |text| text.parse::<$type>().ok().map(<$type>::to_le_bytes))
        };
    }
    if !json.starts_with('[') {
        return None;
    }
    match dtype {
        // A number that is too large is not infinite for every reader.
        Dtype::Fp32 => parse_all(json, |text| {
            text.parse().ok().filter(|value: &f32| value.is_finite()).map(f32::to_le_bytes)
        }),
        Dtype::Fp64 => parse_all(json, |text| {
            text.parse().ok().filter(|value: &f64| value.is_finite()).map(f64::to_le_bytes)
        }),
        Dtype::Uint8 => numbers!(u8),
        Dtype::Uint16 => numbers!(u16),
        Dtype::Uint32 => numbers!(u32),
        Dtype::Uint64 => numbers!(u64),
        Dtype::Int8 => numbers!(i8),
        Dtype::Int16 => numbers!(i16),
        Dtype::Int32 => numbers!(i32),
        Dtype::Int64 => numbers!(i64),
        Dtype::Bool | Dtype::Fp16 | Dtype::Bf16 | Dtype::Bytes => None,
    }
}

fn parse_all<const SIZE: usize>(json: &str, parse: impl Fn(&str) -> Option<[u8; SIZE]>) -> Option<Vec<u8>> {
    let text = json.as_bytes();
    let mut bytes = Vec::with_capacity(SIZE * text.len() / 8);
    let (mut at, mut lists) = (0, 0);
    while let Some(&first) = text.get(at) {
        match KINDS[usize::from(first)] {
            Kind::Between => {
                lists += usize::from(first == b'[');
                at += 1;
            }
            Kind::Number => {
                let rest = &text[at..];
                let length = rest.iter().position(|&byte| KINDS[usize::from(byte)] != Kind::Number)?;
                bytes.extend_from_slice(&parse(&json[at..at + length])?);
                at += length;
            }
            Kind::Other => return None,
        }
    }
    (lists < MOST_LISTS || !is_deep(text)).then_some(bytes)
}

/// Whether lists lie in more lists than `serde_json` goes down.
fn is_deep(json: &[u8]) -> bool {
    let mut depth = 0_usize;
    json.iter().any(|byte| {
        match byte {
            b'[' => depth += 1,
            b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth >= MOST_LISTS
    })
}

/// What a byte of JSON belongs to.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Number,
    Between,
    Other,
}

const KINDS: [Kind; 256] = {
    let mut kinds = [Kind::Other; 256];
    let mut byte = 0;
    while byte < 256 {
        #[allow(clippy::cast_possible_truncation)] // there is no larger one
        match byte as u8 {
            b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E' => kinds[byte] = Kind::Number,
            b'[' | b']' | b',' | b' ' | b'\t' | b'\n' | b'\r' => kinds[byte] = Kind::Between,
            _ => {}
        }
        byte += 1;
    }
    kinds
};

/// Elements in lists of any depth, appended in row-major order as little-endian elements.
struct Elements<'a> {
    dtype: Dtype,
    bytes: &'a mut Vec<u8>,
}

impl Elements<'_> {
    fn integer(&mut self, value: i128) -> std::result::Result<(), String> {
        let size = self.dtype.size();
        let bits = 8 * size;
        let range = match self.dtype {
            Dtype::Bool => 0..=1,
            Dtype::Uint8 | Dtype::Uint16 | Dtype::Uint32 | Dtype::Uint64 => 0..=(1_i128 << bits) - 1,
            Dtype::Int8 | Dtype::Int16 | Dtype::Int32 | Dtype::Int64 => {
                -(1_i128 << (bits - 1))..=(1_i128 << (bits - 1)) - 1
            }
            #[allow(clippy::cast_precision_loss)] // the client chose a float for its integer
            Dtype::Fp16 | Dtype::Bf16 | Dtype::Fp32 | Dtype::Fp64 => return self.float(value as f64),
            Dtype::Bytes => return Err(format!("{value} is no string")),
        };
        if !range.contains(&value) {
            return Err(format!("{value} is out of the range of {}", self.dtype.name()));
        }
        self.bytes.extend_from_slice(&value.to_le_bytes()[..size]);
        Ok(())
    }

    fn text(&mut self, text: &str) -> std::result::Result<(), String> {
        match (self.dtype, text) {
            (Dtype::Bytes, _) => strings::push(self.bytes, text.as_bytes()),
            (Dtype::Fp32 | Dtype::Fp64, NAN) => self.float(f64::NAN),
            (Dtype::Fp32 | Dtype::Fp64, INFINITY) => self.float(f64::INFINITY),
            (Dtype::Fp32 | Dtype::Fp64, MINUS_INFINITY) => self.float(f64::NEG_INFINITY),
            _ => Err(format!("string {text:?} is no {}", self.dtype.name())),
        }
    }

    fn float(&mut self, value: f64) -> std::result::Result<(), String> {
        match self.dtype {
            #[allow(clippy::cast_possible_truncation)] // rounding to the nearest FP32 is what is asked for
            Dtype::Fp32 => self.bytes.extend_from_slice(&(value as f32).to_le_bytes()),
            Dtype::Fp64 => self.bytes.extend_from_slice(&value.to_le_bytes()),
            _ => return Err(format!("{value} is no {}", self.dtype.name())),
        }
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for Elements<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> std::result::Result<(), D::Error> {
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Elements<'_> {
    type Value = ();

    fn expecting(&self, text: &mut fmt::Formatter) -> fmt::Result {
        write!(text, "{} elements, in lists", self.dtype.name())
    }

    fn visit_bool<E: de::Error>(mut self, value: bool) -> std::result::Result<(), E> {
        match self.dtype {
            Dtype::Bool => self.integer(i128::from(value)).map_err(E::custom),
            _ => Err(E::invalid_type(de::Unexpected::Bool(value), &self)),
        }
    }

    fn visit_u64<E: de::Error>(mut self, value: u64) -> std::result::Result<(), E> {
        self.integer(i128::from(value)).map_err(E::custom)
    }

    fn visit_i64<E: de::Error>(mut self, value: i64) -> std::result::Result<(), E> {
        self.integer(i128::from(value)).map_err(E::custom)
    }

    fn visit_f64<E: de::Error>(mut self, value: f64) -> std::result::Result<(), E> {
        self.float(value).map_err(E::custom)
    }

    fn visit_str<E: de::Error>(mut self, value: &str) -> std::result::Result<(), E> {
        self.text(value).map_err(E::custom)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> std::result::Result<(), A::Error> {
        while list.next_element_seed(Elements { dtype: self.dtype, bytes: &mut *self.bytes })?.is_some() {}
        Ok(())
    }
}

/// Appends the elements of a tensor to JSON text, as one flat list.
///
/// # Errors
/// A text for elements that JSON cannot carry.
pub(crate) fn write(dtype: Dtype, bytes: &[u8], json: &mut Vec<u8>) -> Result<(), String> {
    macro_rules! numbers {
        ($type:ty) => {
            list(json, chunks(bytes).map(<$type>::from_le_bytes), put)
        };
    }
    match dtype {
        Dtype::Bool => list(json, bytes.iter().map(|&byte| byte != 0), put),
        Dtype::Uint8 => numbers!(u8),
        Dtype::Uint16 => numbers!(u16),
        Dtype::Uint32 => numbers!(u32),
        Dtype::Uint64 => numbers!(u64),
        Dtype::Int8 => numbers!(i8),
        Dtype::Int16 => numbers!(i16),
        Dtype::Int32 => numbers!(i32),
        Dtype::Int64 => numbers!(i64),
        Dtype::Fp32 => list(json, chunks(bytes).map(f32::from_le_bytes), |json, value| {
            float(json, value, f64::from(*value));
        }),
        Dtype::Fp64 => list(json, chunks(bytes).map(f64::from_le_bytes), |json, value| {
            float(json, value, *value);
        }),
        Dtype::Bytes => list(json, texts(bytes)?, |json, text| put(json, *text)),
        Dtype::Fp16 | Dtype::Bf16 => return Err(format!("{} has no JSON form", dtype.name())),
    }
    Ok(())
}

/// The elements of a BYTES tensor, if all are text.
fn texts(tensor: &[u8]) -> Result<impl Iterator<Item = &str>, String> {
    let elements = strings::Elements::new(tensor);
    for element in elements.clone() {
        str::from_utf8(element).map_err(|error| format!("an element is no UTF-8 ({error})"))?;
    }
    Ok(elements.filter_map(|element| str::from_utf8(element).ok()))
}

fn chunks<const SIZE: usize>(bytes: &[u8]) -> impl Iterator<Item = [u8; SIZE]> {
    bytes.as_chunks().0.iter().copied()
}

fn list<T>(json: &mut Vec<u8>, elements: impl Iterator<Item = T>, put: impl Fn(&mut Vec<u8>, &T)) {
    json.push(b'[');
    for (at, element) in elements.enumerate() {
        if at > 0 {
            json.push(b',');
        }
        put(json, &element);
    }
    json.push(b']');
}

/// Appends a value; writing to a vector cannot fail.
pub(crate) fn put<T: Serialize + ?Sized>(json: &mut Vec<u8>, value: &T) {
    let _ = serde_json::to_writer(json, value);
}

/// The shortest decimal that reads back as the same number of its type.
fn float<T: Serialize>(json: &mut Vec<u8>, number: &T, value: f64) {
    match value {
        _ if value.is_finite() => put(json, number),
        _ if value.is_nan() => json.extend_from_slice(NAN.as_bytes()),
        _ if value > 0.0 => json.extend_from_slice(INFINITY.as_bytes()),
        _ => json.extend_from_slice(MINUS_INFINITY.as_bytes()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(dtype: Dtype, bytes: &[u8]) -> Result<String, String> {
        let mut json = Vec::new();
        write(dtype, bytes, &mut json)?;
        Ok(String::from_utf8(json).unwrap())
    }

    fn round_trip(dtype: Dtype, json: &str) -> String {
        let quoted = quote_words(json.as_bytes());
        let raw: &RawValue = serde_json::from_slice(&quoted).unwrap();
        written(dtype, &read(dtype, raw).unwrap()).unwrap()
    }

    #[test]
    fn elements_come_back() {
        assert_eq!(
            round_trip(Dtype::Fp32, "[0.1, [1], NaN, -Infinity, Infinity, 1e39]"),
            "[0.1,1.0,NaN,-Infinity,Infinity,Infinity]"
        );
        assert_eq!(round_trip(Dtype::Int8, "[[-128], [127]]"), "[-128,127]");
        assert_eq!(round_trip(Dtype::Bool, "[true, 0]"), "[true,false]");
        assert_eq!(
            round_trip(Dtype::Bytes, r#"["", "a\n\"NaN", ["é\u0000"]]"#),
            r#"["","a\n\"NaN","é\u0000"]"#
        );
        assert_eq!(round_trip(Dtype::Fp64, "[]"), "[]");
    }

    #[test]
    fn numbers_are_read_the_same_both_ways() {
        for json in ["[1, -2.5e3 ,\n[0.1,7]]", "[]", "[[],[1]]", "[16777217, 1e-46, 3.4028234e38]", "[-0.0]"]
        {
            for dtype in [Dtype::Fp32, Dtype::Fp64] {
                let mut slow = Vec::new();
                let mut reader = serde_json::Deserializer::from_str(json);
                reader.deserialize_seq(Elements { dtype, bytes: &mut slow }).ok();
                assert_eq!(read_numbers(dtype, json), Some(slow), "{json} {}", dtype.name());
            }
        }
        for json in ["[128]", "[1.5]", "[1e2]", "[true]", "[null]", "[\"1\"]", "[{}]", "[NaN]", "1"] {
            assert_eq!(read_numbers(Dtype::Int8, json), None, "{json}");
        }
        for json in ["[1e400]", "[1e39]"] {
            assert_eq!(read_numbers(Dtype::Fp32, json), None, "{json}");
        }
    }

    #[test]
    fn lists_in_lists_end_where_serde_ends() {
        let nested = |depth: usize| format!("{}1{}", "[".repeat(depth), "]".repeat(depth));
        for depth in [1, 2, 127, 128, 129, 100_000] {
            let json = nested(depth);
            let mut reader = serde_json::Deserializer::from_str(&json);
            let slow = reader.deserialize_seq(Elements { dtype: Dtype::Int8, bytes: &mut Vec::new() });
            assert_eq!(read_numbers(Dtype::Int8, &json).is_some(), slow.is_ok(), "{depth}");
        }
        assert!(read_numbers(Dtype::Int8, &format!("[{}]", vec!["[1]"; 1000].join(","))).is_some());
    }

    #[test]
    fn what_is_no_element_is_refused() {
        let wrong = [
            (Dtype::Int8, "[128]"),
            (Dtype::Int8, "[1.5]"),
            (Dtype::Uint8, "[-1]"),
            (Dtype::Bool, "[2]"),
            (Dtype::Int8, "[true]"),
            (Dtype::Fp32, "[\"1\"]"),
            (Dtype::Int32, "[\"NaN\"]"),
            (Dtype::Fp32, "[null]"),
            (Dtype::Bytes, "[1]"),
            (Dtype::Bytes, "[null]"),
            (Dtype::Fp32, "1"),
            (Dtype::Bytes, "\"a\""),
        ];
        for (dtype, json) in wrong {
            assert!(read(dtype, serde_json::from_str(json).unwrap()).is_err(), "{json}");
        }
        assert!(written(Dtype::Bytes, b"\x01\0\0\0\xff").is_err());
    }

    #[test]
    fn words_in_strings_stay() {
        let text = br#"{"a": "NaN \" Infinity", "b": [1]}"#;
        assert!(matches!(quote_words(text), Cow::Borrowed(_)));
        assert_eq!(&*quote_words(br#"["\\", NaN]"#), br#"["\\", "NaN"]"#);
        assert_eq!(&*quote_words(b"[\"\\"), b"[\"\\");
    }
}
