//! How much a request may hold besides the bytes of its tensors. An empty input takes two bytes of a message and 150 of memory,
//! so what a message would become is counted before, or while, it is decoded.
use std::{fmt, marker::PhantomData, ops::Deref};

use prost::encoding::{WireType, decode_key, decode_varint};
use serde::{
    Deserialize, Deserializer,
    de::{Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_json::{Map, Number, Value};

use crate::error::{Error, Result};

/// Inputs, requested outputs or raw entries of a request; dimensions of a JSON shape.
const MOST_ITEMS: usize = 1 << 16;
/// Dimensions, and parameters, of all tensors of a message.
const MOST_DIMS: usize = 1 << 20;
const MOST_PARAMETERS: usize = 1 << 16;
/// Parameters of a JSON request, or of one of its tensors.
const MOST_JSON_PARAMETERS: usize = 64;
/// What a `bytes_contents` entry takes beside its bytes.
const ENTRY: usize = 32;

/// Bytes that a `ModelInferRequest` takes, decoded, beside those that it came in: typed contents grow.
///
/// # Errors
/// `InvalidArgument` for one of too many parts. What is no such message ends the count and is left to the decoder, which
/// stops at the same place.
pub(crate) fn check_message(message: &[u8]) -> Result<usize> {
    let mut count = Count::default();
    walk(message, &mut |field, part| count.request(field, part));
    count.check()
}

/// A field's value, as far as it can be told from the bytes.
#[derive(Clone, Copy)]
enum Part<'a> {
    Scalar,
    Bytes(&'a [u8]),
    /// A group, which no message here has; decoders skip it.
    Group,
}

/// Visits the fields of a message until it ends, a byte is wrong or a group starts.
fn walk<'a>(mut message: &'a [u8], visit: &mut dyn FnMut(u32, Part<'a>)) {
    while !message.is_empty() {
        let Ok((field, kind)) = decode_key(&mut message) else { return };
        let skipped = match kind {
            WireType::Varint => decode_varint(&mut message).ok().map(|_| 0),
            WireType::SixtyFourBit => Some(8),
            WireType::ThirtyTwoBit => Some(4),
            WireType::LengthDelimited => {
                decode_varint(&mut message).ok().and_then(|length| usize::try_from(length).ok())
            }
            WireType::StartGroup | WireType::EndGroup => return visit(field, Part::Group),
        };
        let Some((value, rest)) = skipped.and_then(|length| message.split_at_checked(length)) else { return };
        message = rest;
        visit(field, if kind == WireType::LengthDelimited { Part::Bytes(value) } else { Part::Scalar });
    }
}

#[derive(Default)]
struct Count {
    inputs: usize,
    outputs: usize,
    raw: usize,
    dims: usize,
    parameters: usize,
    contents: usize,
    groups: bool,
}

impl Count {
    fn request(&mut self, field: u32, part: Part) {
        match (field, part) {
            (_, Part::Group) => self.groups = true,
            (4, _) => self.parameters += 1,
            (5, Part::Bytes(tensor)) => {
                self.inputs += 1;
                walk(tensor, &mut |field, part| self.input(field, part));
            }
            (6, Part::Bytes(tensor)) => {
                self.outputs += 1;
                walk(tensor, &mut |field, part| self.output(field, part));
            }
            (7, _) => self.raw += 1,
            _ => {}
        }
    }

    fn input(&mut self, field: u32, part: Part) {
        match (field, part) {
            (_, Part::Group) => self.groups = true,
            (3, Part::Scalar) => self.dims += 1,
            (3, Part::Bytes(packed)) => self.dims += varints(packed),
            (4, _) => self.parameters += 1,
            (5, Part::Bytes(contents)) => walk(contents, &mut |field, part| self.element(field, part)),
            _ => {}
        }
    }

    fn output(&mut self, field: u32, part: Part) {
        match (field, part) {
            (_, Part::Group) => self.groups = true,
            (2, _) => self.parameters += 1,
            _ => {}
        }
    }

    /// One element of typed contents, or many that are packed.
    fn element(&mut self, field: u32, part: Part) {
        let size = match field {
            1 => 1,
            2 | 4 | 6 => 4,
            _ => 8,
        };
        self.contents += match (field, part) {
            (_, Part::Group) => {
                self.groups = true;
                0
            }
            (8, Part::Bytes(element)) => ENTRY + element.len(),
            (1..=5, Part::Bytes(packed)) => size * varints(packed),
            (_, Part::Bytes(packed)) => packed.len(),
            (_, Part::Scalar) => size,
        };
    }

    fn check(&self) -> Result<usize> {
        let counts = [
            ("inputs", self.inputs, MOST_ITEMS),
            ("requested outputs", self.outputs, MOST_ITEMS),
            ("raw_input_contents", self.raw, MOST_ITEMS),
            ("dimensions", self.dims, MOST_DIMS),
            ("parameters", self.parameters, MOST_PARAMETERS),
        ];
        if let Some((what, got, most)) = counts.into_iter().find(|(_, got, most)| got > most) {
            return Err(Error::invalid(format!("the request has {got} {what}, the limit is {most}")));
        }
        if self.groups {
            return Err(Error::invalid(
                "failed to parse ModelInferRequest: it has a group, and no field is one",
            ));
        }
        Ok(self.contents)
    }
}

/// Numbers in a packed field.
fn varints(packed: &[u8]) -> usize {
    packed.iter().filter(|byte| **byte < 0x80).count()
}

/// A list of a JSON request, of a bounded length.
///
/// # Errors
/// The reader's, and one for a list that is too long.
pub(crate) fn list<'de, D, T>(reader: D) -> std::result::Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    struct List<T>(PhantomData<T>);

    impl<'de, T: Deserialize<'de>> Visitor<'de> for List<T> {
        type Value = Vec<T>;

        fn expecting(&self, text: &mut fmt::Formatter) -> fmt::Result {
            text.write_str("a list")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> std::result::Result<Vec<T>, A::Error> {
            let mut list = Vec::new();
            while let Some(item) = items.next_element()? {
                if list.len() == MOST_ITEMS {
                    return Err(A::Error::custom(format!("a list is longer than {MOST_ITEMS}")));
                }
                list.push(item);
            }
            Ok(list)
        }
    }

    reader.deserialize_seq(List(PhantomData))
}

/// The parameters of a JSON request or tensor. Only scalars mean something; lists and objects are there, and empty.
#[derive(Default)]
pub(crate) struct Parameters(Map<String, Value>);

impl Deref for Parameters {
    type Target = Map<String, Value>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl<'de> Deserialize<'de> for Parameters {
    fn deserialize<D: Deserializer<'de>>(reader: D) -> std::result::Result<Self, D::Error> {
        reader.deserialize_map(Members).map(Self)
    }
}

struct Members;

impl<'de> Visitor<'de> for Members {
    type Value = Map<String, Value>;

    fn expecting(&self, text: &mut fmt::Formatter) -> fmt::Result {
        text.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> std::result::Result<Self::Value, A::Error> {
        let mut map = Map::new();
        while let Some((key, Scalar(value))) = members.next_entry()? {
            if map.len() == MOST_JSON_PARAMETERS {
                return Err(A::Error::custom(format!("there are over {MOST_JSON_PARAMETERS} parameters")));
            }
            map.insert(key, value);
        }
        Ok(map)
    }
}

struct Scalar(Value);

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(reader: D) -> std::result::Result<Self, D::Error> {
        reader.deserialize_any(Scalars).map(Self)
    }
}

struct Scalars;

impl<'de> Visitor<'de> for Scalars {
    type Value = Value;

    fn expecting(&self, text: &mut fmt::Formatter) -> fmt::Result {
        text.write_str("a value")
    }

    fn visit_unit<E>(self) -> std::result::Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> std::result::Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> std::result::Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> std::result::Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> std::result::Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, value: &str) -> std::result::Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> std::result::Result<Value, A::Error> {
        while items.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Value::Array(vec![]))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> std::result::Result<Value, A::Error> {
        while members.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Value::Object(Map::new()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(number: u8, payload: &[u8]) -> Vec<u8> {
        let length = u8::try_from(payload.len()).unwrap();
        [&[number << 3 | 2, length], payload].concat()
    }

    fn told(message: &[u8]) -> String {
        check_message(message).err().map_or_else(String::new, |error| error.message)
    }

    #[test]
    fn every_kind_of_part_is_counted() {
        let items = MOST_ITEMS + 1;
        for (part, times, words) in [
            (field(5, b""), items, "65537 inputs, the limit is 65536"),
            (field(6, b""), items, "65537 requested outputs"),
            (field(7, b""), items, "65537 raw_input_contents"),
            (field(4, b""), items, "65537 parameters"),
            (field(5, &field(4, b"").repeat(30)), items / 30 + 1, "inputs"),
            (field(5, &field(3, &[0; 100])), items / 4, "dimensions"),
            (field(5, &[0x18, 1].repeat(60)), items / 2, "dimensions"),
            (field(6, &[0x13]), 1, "group"),
            (field(5, &field(5, &[0x1b])), 1, "group"),
            (vec![0x7b], 1, "group"),
        ] {
            let text = told(&part.repeat(times));
            let expected = if words == "inputs" { "parameters" } else { words };
            assert!(text.contains(expected), "{text} for {expected}");
        }
    }

    #[test]
    fn typed_contents_weigh_what_they_become() {
        for (contents, weight) in [
            (field(3, &[0; 10]), 80),
            (field(2, &[0xff, 0x01]), 4),
            (field(6, &[0; 12]), 12),
            (vec![0x18, 1, 0x18, 1], 16),
            (field(8, b"abc"), ENTRY + 3),
            (field(1, &[1; 7]), 7),
        ] {
            assert_eq!(check_message(&field(5, &field(5, &contents))).ok(), Some(weight), "{contents:?}");
        }
    }

    #[test]
    fn json_parameters_keep_scalars_only() {
        let read = |text: &str| serde_json::from_str::<Parameters>(text);
        let some = read(r#"{"a": 1, "b": -2, "c": 0.5, "d": "x", "e": null, "f": [1, [2]], "g": {"h": 3}}"#)
            .unwrap();
        let expected = serde_json::json!({"a": 1, "b": -2, "c": 0.5, "d": "x", "e": null, "f": [], "g": {}});
        assert_eq!(Value::Object(some.0), expected);
        let many: Vec<_> = (0..=MOST_JSON_PARAMETERS).map(|key| format!("\"{key}\": 0")).collect();
        assert!(read(&format!("{{{}}}", many.join(","))).is_err());
    }
}
