//! The HTTP body of an inference: JSON, with the binary tensors behind it.
use std::fmt;

use bytes::Bytes;
use serde::{
    Deserialize, Deserializer,
    de::{self, DeserializeSeed, SeqAccess, Visitor},
};
use serde_json::{Map, Value, json, value::RawValue};

use crate::{
    dtype::Dtype,
    envelope::{Envelope, InputEnvelope, OutputEnvelope, RegionPart, Source},
    error::{Error, Result},
    pending::{OutputReply, Reply},
};

#[derive(Deserialize)]
struct RequestJson<'a> {
    #[serde(default)]
    id: String,
    #[serde(default)]
    parameters: crate::bounds::Parameters,
    #[serde(borrow, deserialize_with = "crate::bounds::list")]
    inputs: Vec<InputJson<'a>>,
    #[serde(default, deserialize_with = "crate::bounds::list")]
    outputs: Vec<OutputJson>,
}

#[derive(Deserialize)]
struct InputJson<'a> {
    name: String,
    datatype: String,
    #[serde(deserialize_with = "crate::bounds::list")]
    shape: Vec<i64>,
    #[serde(default)]
    parameters: crate::bounds::Parameters,
    #[serde(borrow)]
    data: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct OutputJson {
    name: String,
    #[serde(default)]
    parameters: crate::bounds::Parameters,
}

/// Which outputs the client wants as binary.
#[derive(Default)]
pub(crate) struct Formats {
    default: bool,
    named: Vec<(String, bool)>,
}

impl Formats {
    fn binary(&self, output: &str) -> bool {
        self.named.iter().find(|(name, _)| name == output).map_or(self.default, |&(_, binary)| binary)
    }
}

/// Reads a body whose first `json_length` bytes are JSON (`None`: all of them).
///
/// # Errors
/// `InvalidArgument` for JSON that cannot be read, lengths that lie and references that contradict each other,
/// `Unsupported` for what is not served yet.
pub(crate) fn decode(
    model: &str,
    version: &str,
    body: &Bytes,
    json_length: Option<usize>,
) -> Result<(Envelope, Formats)> {
    let json_length = json_length.unwrap_or(body.len());
    if json_length > body.len() {
        return Err(Error::invalid(format!(
            "invalid Inference-Header-Content-Length: {json_length} is over the {} bytes of the body",
            body.len()
        )));
    }
    if json_length == 0 {
        return Err(Error::unsupported(
            "raw binary requests (Inference-Header-Content-Length: 0) are not served yet",
        ));
    }
    let request: RequestJson = serde_json::from_slice(&body[..json_length])
        .map_err(|error| Error::invalid(format!("failed to parse the request JSON buffer: {error}")))?;
    let id = request.id.clone();
    envelope(model, version, request, body.slice(json_length..)).map_err(|error| error.of_request(&id))
}

fn envelope(
    model: &str,
    version: &str,
    request: RequestJson,
    mut binary: Bytes,
) -> Result<(Envelope, Formats)> {
    let inputs =
        request.inputs.into_iter().map(|tensor| input(tensor, &mut binary)).collect::<Result<Vec<_>>>()?;
    if !binary.is_empty() {
        return Err(Error::invalid(format!(
            "unexpected additional input data for model '{model}': {} bytes are left after the last input",
            binary.len()
        )));
    }
    let mut formats =
        Formats { default: flag(&request.parameters, "binary_data_output")?.unwrap_or(false), named: vec![] };
    let mut outputs = Vec::with_capacity(request.outputs.len());
    for OutputJson { name, parameters } in request.outputs {
        if parameters.get("classification").is_some_and(|count| *count != json!(0)) {
            return Err(Error::unsupported(format!(
                "classification of output '{name}' for model '{model}' is not served yet"
            )));
        }
        let region = region(&parameters, "output", &name)?;
        let binary = flag(&parameters, "binary_data")?;
        if region.is_some() && binary == Some(true) {
            return Err(Error::invalid(format!(
                "output '{name}' can not set both 'shared_memory_region' and 'binary_data'"
            )));
        }
        if let Some(binary) = binary {
            formats.named.push((name.clone(), binary));
        }
        outputs.push(OutputEnvelope { name, region });
    }
    let envelope = Envelope { model: model.into(), version: version.into(), id: request.id, inputs, outputs };
    Ok((envelope, formats))
}

fn input(tensor: InputJson, binary: &mut Bytes) -> Result<InputEnvelope> {
    let InputJson { name, datatype, shape, parameters, data } = tensor;
    let region = region(&parameters, "input", &name)?;
    let size = unsigned(&parameters, "binary_data_size", "input", &name)?;
    let source = match (region, size, data) {
        (Some(part), None, None) => Source::Region(part),
        (None, Some(size), None) => {
            let given = binary.len();
            let size = usize::try_from(size).ok().filter(|&size| size <= given).ok_or_else(|| {
                Error::invalid(format!(
                    "input '{name}' has 'binary_data_size' {size}, but {given} bytes are left in the body"
                ))
            })?;
            Source::Inline(binary.split_to(size))
        }
        (None, None, Some(data)) => Source::Inline(parse_data(&name, &datatype, data)?),
        (None, None, None) => {
            return Err(Error::invalid(format!(
                "input '{name}' has no data: expected 'data', 'binary_data_size' or 'shared_memory_region'"
            )));
        }
        _ => {
            return Err(Error::invalid(format!(
                "input '{name}' must have only one of 'data', 'binary_data_size' and 'shared_memory_region'"
            )));
        }
    };
    Ok(InputEnvelope { name, datatype, shape, source })
}

fn region(parameters: &Map<String, Value>, side: &str, tensor: &str) -> Result<Option<RegionPart>> {
    let offset = unsigned(parameters, "shared_memory_offset", side, tensor)?;
    let length = unsigned(parameters, "shared_memory_byte_size", side, tensor)?;
    match (parameters.get("shared_memory_region"), length) {
        (None, None) if offset.is_none() => Ok(None),
        (Some(Value::String(name)), Some(length)) => {
            Ok(Some(RegionPart { name: name.clone(), offset: offset.unwrap_or(0), length }))
        }
        (Some(Value::String(_)), None) => Err(Error::invalid(format!(
            "'shared_memory_byte_size' must be specified along with 'shared_memory_region' for {side} '{tensor}'"
        ))),
        (Some(other), _) => Err(Error::invalid(format!(
            "'shared_memory_region' of {side} '{tensor}' must be a string, got {other}"
        ))),
        (None, _) => Err(Error::invalid(format!(
            "'shared_memory_byte_size' and 'shared_memory_offset' need 'shared_memory_region' for {side} '{tensor}'"
        ))),
    }
}

fn unsigned(parameters: &Map<String, Value>, key: &str, side: &str, tensor: &str) -> Result<Option<u64>> {
    match parameters.get(key) {
        None => Ok(None),
        Some(value) => value.as_u64().map(Some).ok_or_else(|| {
            Error::invalid(format!("'{key}' of {side} '{tensor}' must be an unsigned integer, got {value}"))
        }),
    }
}

fn flag(parameters: &Map<String, Value>, key: &str) -> Result<Option<bool>> {
    match parameters.get(key) {
        None => Ok(None),
        Some(Value::Bool(value)) => Ok(Some(*value)),
        Some(other) => Err(Error::invalid(format!("'{key}' must be true or false, got {other}"))),
    }
}

fn parse_data(name: &str, datatype: &str, data: &RawValue) -> Result<Bytes> {
    let Some(dtype) = Dtype::from_name(datatype) else {
        return Err(match datatype {
            "BYTES" => Error::unsupported(format!("input '{name}' is BYTES, which is not served yet")),
            _ => Error::invalid(format!("input '{name}' has unknown datatype '{datatype}'")),
        });
    };
    if matches!(dtype, Dtype::Fp16 | Dtype::Bf16) {
        return Err(Error::invalid(format!(
            "input '{name}': {datatype} can not be sent as JSON; send it as binary data or in shared memory"
        )));
    }
    let mut bytes = Vec::new();
    let mut reader = serde_json::Deserializer::from_str(data.get());
    Elements { dtype, bytes: &mut bytes }.deserialize(&mut reader).map_err(|error| {
        Error::invalid(format!("failed to read the {datatype} data of input '{name}': {error}"))
    })?;
    Ok(bytes.into())
}

/// Numbers in lists of any depth, appended in row-major order as little-endian elements.
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
        };
        if !range.contains(&value) {
            return Err(format!("{value} is out of the range of {}", self.dtype.name()));
        }
        self.bytes.extend_from_slice(&value.to_le_bytes()[..size]);
        Ok(())
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

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> std::result::Result<(), A::Error> {
        while list.next_element_seed(Elements { dtype: self.dtype, bytes: &mut *self.bytes })?.is_some() {}
        Ok(())
    }
}

/// The pieces of a reply body, and the length of its JSON part where binaries follow it.
///
/// # Errors
/// `InvalidArgument` for an output that JSON cannot carry.
pub(crate) fn encode(reply: Reply, formats: &Formats) -> Result<(Vec<Bytes>, Option<usize>)> {
    let Reply { spec, id, outputs } = reply;
    let (mut described, mut binaries) = (Vec::with_capacity(outputs.len()), Vec::new());
    for OutputReply { index, shape, bytes } in outputs {
        let tensor = &spec.outputs[index];
        let mut output = json!({"name": tensor.name, "datatype": tensor.dtype.name(), "shape": shape});
        match bytes {
            None => {}
            Some(bytes) if formats.binary(&tensor.name) => {
                output["parameters"] = json!({"binary_data_size": bytes.len()});
                binaries.push(bytes);
            }
            Some(bytes) => output["data"] = json_data(&tensor.name, tensor.dtype, &bytes)?,
        }
        described.push(output);
    }
    let mut head =
        json!({"model_name": spec.model, "model_version": spec.version.to_string(), "outputs": described});
    if !id.is_empty() {
        head["id"] = id.into();
    }
    let head: Bytes = head.to_string().into();
    let json_length = (!binaries.is_empty()).then_some(head.len());
    Ok(([vec![head], binaries].concat(), json_length))
}

fn json_data(name: &str, dtype: Dtype, bytes: &[u8]) -> Result<Value> {
    macro_rules! numbers {
        ($type:ty) => {
            bytes
                .chunks_exact(size_of::<$type>())
                .map(|chunk| <$type>::from_le_bytes(chunk.try_into().unwrap_or_default()).into())
                .collect()
        };
    }
    let values: Vec<Value> = match dtype {
        Dtype::Bool => bytes.iter().map(|&byte| (byte != 0).into()).collect(),
        Dtype::Uint8 => bytes.iter().map(|&byte| byte.into()).collect(),
        Dtype::Uint16 => numbers!(u16),
        Dtype::Uint32 => numbers!(u32),
        Dtype::Uint64 => numbers!(u64),
        Dtype::Int8 => numbers!(i8),
        Dtype::Int16 => numbers!(i16),
        Dtype::Int32 => numbers!(i32),
        Dtype::Int64 => numbers!(i64),
        Dtype::Fp32 => bytes
            .chunks_exact(4)
            .map(|chunk| fp32(f32::from_le_bytes(chunk.try_into().unwrap_or_default())))
            .collect(),
        Dtype::Fp64 => numbers!(f64),
        Dtype::Fp16 | Dtype::Bf16 => {
            return Err(Error::invalid(format!(
                "output '{name}': {} can not be sent as JSON; ask for binary data or shared memory",
                dtype.name()
            )));
        }
    };
    Ok(values.into())
}

/// The shortest decimal that reads back as the same FP32.
fn fp32(value: f32) -> Value {
    value.to_string().parse::<f64>().map_or(Value::Null, Value::from)
}
