//! The HTTP body of an inference: JSON, with the binary tensors behind it.
use std::borrow::Cow;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Map, Value, value::RawValue};

use crate::{
    dtype::Dtype,
    envelope::{Envelope, InputEnvelope, OutputEnvelope, RegionPart, Source},
    error::{Error, Result},
    json::{self, put},
    parameters::{Parameter, check_http, text_of},
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
    /// What a requested output says itself.
    named: Vec<(String, Option<bool>)>,
}

impl Formats {
    fn binary(&self, output: &str) -> bool {
        let named = self.named.iter().find(|(name, _)| name == output);
        named.and_then(|&(_, binary)| binary).unwrap_or(self.default)
    }
}

/// Reads a body whose first `given` bytes are JSON (`None`: all of them; 0: the body is the content of the model's one input).
///
/// # Errors
/// `InvalidArgument` for JSON that cannot be read, lengths that lie and references that contradict each other.
pub(crate) fn decode(
    model: &str,
    version: &str,
    body: &Bytes,
    given: Option<usize>,
) -> Result<(Envelope, Formats)> {
    let json_length = given.unwrap_or(body.len());
    if json_length > body.len() {
        return Err(Error::invalid(format!(
            "invalid Inference-Header-Content-Length: {json_length} is over the {} bytes of the body",
            body.len()
        )));
    }
    if given == Some(0) {
        let envelope = Envelope {
            model: model.into(),
            version: version.into(),
            raw: Some(body.clone()),
            ..Envelope::default()
        };
        return Ok((envelope, Formats { default: true, named: vec![] }));
    }
    let text = &body[..json_length];
    let quoted;
    let request: RequestJson = match serde_json::from_slice(text) {
        Ok(request) => request,
        Err(error) => {
            quoted = json::quote_words(text); // few bodies have such words: they are looked for last
            if matches!(quoted, Cow::Borrowed(_)) {
                return Err(unreadable(&error));
            }
            serde_json::from_slice(&quoted).map_err(|error| unreadable(&error))?
        }
    };
    let id = request.id.clone();
    envelope(model, version, request, body.slice(json_length..)).map_err(|error| error.of_request(&id))
}

fn unreadable(error: &serde_json::Error) -> Error {
    Error::invalid(format!("failed to parse the request JSON buffer: {error}"))
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
    let parameters = request.parameters.iter().map(|(key, value)| (key.as_str(), Parameter::of_json(value)));
    check_http(parameters)?;
    let default = flag(&request.parameters, "binary_data_output")?.unwrap_or(false);
    let kept = request.parameters.iter().filter(|(key, _)| key.as_str() != "binary_data_output");
    let parameters = text_of(kept.map(|(key, value)| (key.as_str(), value.clone())));
    let mut formats = Formats { default, named: Vec::with_capacity(request.outputs.len()) };
    let mut outputs = Vec::with_capacity(request.outputs.len());
    for tensor in request.outputs {
        let (output, binary) = output(tensor)?;
        formats.named.push((output.name.clone(), binary));
        outputs.push(output);
    }
    let envelope = Envelope {
        model: model.into(),
        version: version.into(),
        id: request.id,
        parameters,
        inputs,
        outputs,
        raw: None,
    };
    Ok((envelope, formats))
}

fn output(tensor: OutputJson) -> Result<(OutputEnvelope, Option<bool>)> {
    let OutputJson { name, parameters } = tensor;
    let region = region(&parameters, "output", &name)?;
    let binary = flag(&parameters, "binary_data")?;
    let classes = unsigned(&parameters, "classification", "output", &name)?.unwrap_or(0);
    if region.is_some() && (binary == Some(true) || classes > 0) {
        let other = if classes > 0 { "classification" } else { "binary_data" };
        return Err(Error::invalid(format!(
            "output '{name}' can't set both 'shared_memory_region' and '{other}'"
        )));
    }
    let classes = usize::try_from(classes).unwrap_or(usize::MAX);
    Ok((OutputEnvelope { name, region, classes }, binary))
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
                    "unexpected size for input '{name}': 'binary_data_size' is {size}, but {given} bytes are left in the body"
                ))
            })?;
            Source::Inline(binary.split_to(size))
        }
        (None, None, Some(data)) => Source::Inline(parse_data(&name, &datatype, data)?),
        (None, None, None) => {
            return Err(Error::invalid(format!(
                "input '{name}' must set only one of 'data', 'binary_data_size' and 'shared_memory_region', but no field is set"
            )));
        }
        _ => {
            return Err(Error::invalid(format!(
                "input '{name}' must set only one of 'data', 'binary_data_size' and 'shared_memory_region', but several are set"
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
        return Err(Error::invalid(format!("invalid datatype for input '{name}': '{datatype}'")));
    };
    if matches!(dtype, Dtype::Fp16 | Dtype::Bf16) {
        return Err(Error::invalid(format!(
            "receiving {datatype} data via JSON is not supported. Please use the binary data format for input '{name}'"
        )));
    }
    let bytes = json::read(dtype, data).map_err(|error| {
        Error::invalid(format!("Unable to parse 'data' of input '{name}' as {datatype}: {error}"))
    })?;
    Ok(bytes.into())
}

/// The pieces of a reply body, and the length of its JSON part where binaries follow it.
///
/// # Errors
/// `InvalidArgument` for an output that JSON cannot carry.
pub(crate) fn encode(reply: Reply, formats: &Formats) -> Result<(Vec<Bytes>, Option<usize>)> {
    let Reply { spec, id, outputs, .. } = reply;
    let (mut head, mut binaries) = (Vec::with_capacity(256), Vec::new());
    head.push(b'{');
    if !id.is_empty() {
        head.extend_from_slice(b"\"id\":");
        put(&mut head, &id);
        head.push(b',');
    }
    head.extend_from_slice(b"\"model_name\":");
    put(&mut head, &spec.model);
    head.extend_from_slice(format!(",\"model_version\":\"{}\",\"outputs\":[", spec.version).as_bytes());
    for (at, output) in outputs.into_iter().enumerate() {
        if at > 0 {
            head.push(b',');
        }
        let name = &spec.outputs[output.index].name;
        binaries.extend(describe(name, output, formats.binary(name), &mut head)?);
    }
    head.extend_from_slice(b"]}");
    let json_length = (!binaries.is_empty()).then_some(head.len());
    Ok(([vec![head.into()], binaries].concat(), json_length))
}

/// Appends an output to the JSON; returns its bytes where they are to follow the JSON.
fn describe(name: &str, output: OutputReply, binary: bool, json: &mut Vec<u8>) -> Result<Option<Bytes>> {
    let OutputReply { dtype, shape, bytes, .. } = output;
    json.extend_from_slice(b"{\"name\":");
    put(json, name);
    json.extend_from_slice(format!(",\"datatype\":\"{}\",\"shape\":", dtype.name()).as_bytes());
    put(json, &shape);
    let mut behind = None;
    match bytes {
        None => {}
        Some(bytes) if binary => {
            json.extend_from_slice(
                format!(",\"parameters\":{{\"binary_data_size\":{}}}", bytes.len()).as_bytes(),
            );
            behind = Some(bytes);
        }
        Some(bytes) => {
            json.extend_from_slice(b",\"data\":");
            json::write(dtype, &bytes, json).map_err(|why| {
                Error::invalid(format!(
                    "sending {} data via JSON is not supported for output '{name}': {why}. Please use the binary data format for output '{name}'",
                    dtype.name()
                ))
            })?;
        }
    }
    json.push(b'}');
    Ok(behind)
}
