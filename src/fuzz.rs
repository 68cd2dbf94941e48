//! Requests that nobody would write, for the readers of the wire: they give an envelope or an error, and never panic.
//!
//! The numbers are the same in every run. `HEADRACE_FUZZ=5000000 cargo test --release fuzz` goes on for longer.
use bytes::Bytes;

use crate::{
    binary, bounds,
    compression::{self, Coding},
    envelope::{Envelope, Source},
    error::Result,
    gate::Gate,
    proto,
};

const ROUNDS: u64 = 20_000;

fn rounds() -> u64 {
    std::env::var("HEADRACE_FUZZ").ok().and_then(|count| count.parse().ok()).unwrap_or(ROUNDS)
}

/// `SplitMix64`: a row of numbers for every seed.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % end as u64).unwrap_or(0)
    }

    fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    fn byte(&mut self) -> u8 {
        self.next().to_le_bytes()[0]
    }

    /// Small, at an edge, or anything.
    fn number(&mut self) -> u64 {
        match self.below(4) {
            0 => self.next(),
            1 => self.pick(&[0, 1, 127, 128, 1 << 31, (1 << 31) - 1, 1 << 32, 1 << 62, 1 << 63, u64::MAX]),
            _ => self.next() % 20,
        }
    }

    /// Some bytes changed, cut off, doubled or put in.
    fn damage(&mut self, bytes: &mut Vec<u8>) {
        for _ in 0..self.below(4) {
            if bytes.is_empty() {
                return;
            }
            let at = self.below(bytes.len());
            match self.below(5) {
                0 => bytes.truncate(at),
                1 => bytes.insert(at, self.byte()),
                2 => bytes[at] ^= 1 << self.below(8),
                3 => {
                    let end = at + self.below(bytes.len() - at);
                    bytes.extend_from_within(at..end);
                }
                _ => bytes[at] = self.byte(),
            }
        }
    }
}

const NAMES: [&str; 8] = ["INPUT0", "OUTPUT0", "", "a/b", "\u{0}", "é", "FP32", "x\"\\"];
const KEYS: [&str; 12] = [
    "shared_memory_region",
    "shared_memory_byte_size",
    "shared_memory_offset",
    "binary_data",
    "binary_data_size",
    "binary_data_output",
    "classification",
    "sequence_id",
    "priority",
    "timeout",
    "triton_x",
    "",
];
const DTYPES: [&str; 10] =
    ["BOOL", "UINT8", "INT8", "INT16", "INT64", "FP16", "FP32", "FP64", "BYTES", "nothing"];

/// A message with fields that may be there, in an order and of kinds that may be wrong.
fn message(numbers: &mut Numbers, depth: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..numbers.below(6) {
        let (field, kind) = (1 + numbers.below(9), numbers.pick(&[0, 1, 2, 2, 2, 2, 3, 4, 5, 6]));
        varint((field << 3 | kind) as u64, &mut bytes);
        match kind {
            0 => varint(numbers.number(), &mut bytes),
            1 => bytes.extend_from_slice(&numbers.next().to_le_bytes()),
            5 => bytes.extend_from_slice(&numbers.next().to_le_bytes()[..4]),
            2 => {
                let value = match numbers.below(4) {
                    0 => numbers.pick(&NAMES).as_bytes().to_vec(),
                    1 => numbers.pick(&KEYS).as_bytes().to_vec(),
                    2 if depth < 4 => message(numbers, depth + 1),
                    _ => (0..numbers.below(40)).map(|_| numbers.byte()).collect(),
                };
                let length = if numbers.one_in(30) { numbers.number() } else { value.len() as u64 };
                varint(length, &mut bytes);
                bytes.extend_from_slice(&value);
            }
            _ => {}
        }
    }
    bytes
}

fn varint(value: u64, bytes: &mut Vec<u8>) {
    prost::encoding::encode_varint(value, bytes);
}

/// JSON that is one, of keys that mean something and values that may be wrong.
fn request_json(numbers: &mut Numbers) -> String {
    let mut text = String::from("{");
    for member in ["inputs", "outputs", "parameters", "id", "more"] {
        if !numbers.one_in(4) {
            let value = match member {
                "inputs" | "outputs" if !numbers.one_in(10) => tensors(numbers),
                "parameters" if !numbers.one_in(10) => parameters(numbers),
                "id" if !numbers.one_in(10) => quoted(numbers.pick(&NAMES)),
                _ => value(numbers, 0),
            };
            push_member(&mut text, member, &value);
        }
    }
    closed(text, '}')
}

fn tensors(numbers: &mut Numbers) -> String {
    let mut text = String::from("[");
    for _ in 0..numbers.below(3) {
        text.push('{');
        for member in ["name", "datatype", "shape", "parameters", "data"] {
            if !numbers.one_in(12) {
                let value = match member {
                    "name" if !numbers.one_in(10) => quoted(numbers.pick(&NAMES)),
                    "datatype" if !numbers.one_in(10) => quoted(numbers.pick(&DTYPES)),
                    "shape" if !numbers.one_in(5) => "[1,2]".into(),
                    "parameters" if !numbers.one_in(10) => parameters(numbers),
                    _ => value(numbers, 0),
                };
                push_member(&mut text, member, &value);
            }
        }
        text = closed(text, '}') + ",";
    }
    closed(text, ']')
}

fn parameters(numbers: &mut Numbers) -> String {
    let mut text = String::from("{");
    for _ in 0..numbers.below(5) {
        let (key, value) = (numbers.pick(&KEYS), value(numbers, 2));
        push_member(&mut text, key, &value);
    }
    closed(text, '}')
}

fn value(numbers: &mut Numbers, depth: usize) -> String {
    match numbers.below(if depth < 4 { 10 } else { 8 }) {
        0 => "null".into(),
        1 => "true".into(),
        2 => quoted(numbers.pick(&NAMES)),
        3 => numbers.pick(&["1e999", "-0", "0.1", "-1.5e-300", "NaN", "-Infinity", "01", "\"NaN\""]).into(),
        4 => format!("-{}", numbers.number()),
        5..=7 => numbers.number().to_string(),
        8 => {
            let mut text = String::from("[");
            for _ in 0..numbers.below(5) {
                text += &value(numbers, depth + 1);
                text.push(',');
            }
            closed(text, ']')
        }
        _ => parameters(numbers),
    }
}

fn push_member(text: &mut String, key: &str, value: &str) {
    text.extend([&quoted(key), ":", value, ","]);
}

fn quoted(text: &str) -> String {
    serde_json::to_string(text).unwrap_or_default()
}

fn closed(mut text: String, end: char) -> String {
    if text.ends_with(',') {
        text.pop();
    }
    text.push(end);
    text
}

/// An error says something; an envelope holds no more than could have come.
fn sound(outcome: Result<Envelope>, came: usize) -> bool {
    match outcome {
        Err(error) => {
            assert!(!error.message.is_empty());
            false
        }
        Ok(envelope) => {
            for input in &envelope.inputs {
                if let Source::Inline(bytes) = &input.source {
                    assert!(bytes.len() <= 16 * came, "{} bytes of {came}", bytes.len());
                }
            }
            true
        }
    }
}

#[test]
fn fuzz_messages() {
    let mut numbers = Numbers(1);
    let mut read = 0;
    for _ in 0..rounds() {
        let mut bytes = message(&mut numbers, 0);
        numbers.damage(&mut bytes);
        if bounds::check_message(&bytes).is_ok() {
            let came = bytes.len();
            read += u64::from(sound(proto::decode(bytes.into()), came));
        }
    }
    assert!(read > rounds() / 100, "only {read} were requests: the generator is blunt");
}

#[test]
fn fuzz_json_and_binary_framing() {
    let mut numbers = Numbers(2);
    let mut read = 0;
    for _ in 0..rounds() {
        let mut bytes = request_json(&mut numbers).into_bytes();
        let json = bytes.len();
        let tail = if numbers.one_in(3) { numbers.below(20) } else { 0 };
        bytes.extend(std::iter::repeat_n(7, tail));
        if numbers.one_in(3) {
            numbers.damage(&mut bytes);
        }
        let length = match numbers.below(4) {
            0 => None,
            1 => usize::try_from(numbers.number()).ok(),
            _ => Some(json),
        };
        let body = Bytes::from(bytes);
        let outcome = binary::decode("echo", "", &body, length).map(|(envelope, _)| envelope);
        read += u64::from(sound(outcome, body.len()));
    }
    assert!(read > rounds() / 100, "only {read} were requests: the generator is blunt");
}

#[test]
fn fuzz_compressed_bodies() {
    let mut numbers = Numbers(3);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let gate = std::sync::Arc::new(Gate::new(10, 1 << 20));
    let mut same = 0;
    for _ in 0..rounds() / 10 {
        let coding = numbers.pick(&[Coding::Gzip, Coding::Deflate]);
        let (seed, length) = (numbers.byte(), numbers.below(100_000));
        let plain: Bytes =
            (0..length).map(|at| if at % 7 == 0 { seed } else { 0 }).collect::<Vec<_>>().into();
        let mut packed: Vec<u8> = runtime
            .block_on(compression::pack(coding, flate2::Compression::fast(), vec![plain.clone()]))
            .ok()
            .unwrap()
            .into();
        if numbers.one_in(2) {
            numbers.damage(&mut packed);
        }
        let limit = numbers.below(200_000);
        let permit = gate.enter().ok().unwrap();
        if let Ok((message, _permit)) =
            runtime.block_on(compression::unpack(coding, packed.into(), limit, permit))
        {
            assert!(message.len() <= limit);
            same += u64::from(message == plain);
        }
    }
    assert_eq!(gate.in_flight().0, 0);
    assert!(same > rounds() / 10 / 4, "only {same} came back");
}
