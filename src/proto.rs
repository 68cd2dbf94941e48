//! The inference messages of gRPC: request to envelope, reply to bytes.
use bytes::Bytes;
use prost::{
    Message,
    encoding::{WireType, encode_key, encode_varint, encoded_len_varint},
};
use serde_json::Value;

use crate::{
    dtype::Dtype,
    envelope::{Envelope, InputEnvelope, OutputEnvelope, RegionPart, Source},
    error::{Error, Result},
    parameters::{Parameter, check_grpc, text_of},
    pending::Reply,
    strings,
};

#[allow(clippy::all, clippy::pedantic, unreachable_pub)] // generated
mod messages {
    include!(concat!(env!("OUT_DIR"), "/inference.rs"));
}

use messages::{
    InferParameter, InferTensorContents, ModelInferRequest, ModelInferResponse,
    infer_parameter::ParameterChoice,
    model_infer_request::{InferInputTensor, InferRequestedOutputTensor},
    model_infer_response::InferOutputTensor,
};

type Parameters = std::collections::HashMap<String, InferParameter>;

/// Field number of `raw_output_contents`.
const RAW_OUTPUT: u32 = 6;
/// Outputs up to this size are copied into the head of the message: one frame is cheaper than two.
const SMALL_OUTPUT: usize = 16 << 10;

/// # Errors
/// `InvalidArgument` for bytes that are no such message and for references and contents that contradict each other.
pub(crate) fn decode(message: Bytes) -> Result<Envelope> {
    let request = ModelInferRequest::decode(message)
        .map_err(|error| Error::invalid(format!("failed to parse ModelInferRequest: {error}")))?;
    let id = request.id.clone();
    envelope(request).map_err(|error| error.of_request(&id))
}

fn envelope(request: ModelInferRequest) -> Result<Envelope> {
    let model = request.model_name;
    check_grpc(request.parameters.iter().map(|(key, value)| (key.as_str(), kind(value))))?;
    let parameters = text_of(request.parameters.iter().map(|(key, value)| (key.as_str(), json(value))));
    // Like Triton: surplus entries are nobody's.
    let mut raw =
        Raw { given: request.raw_input_contents.len(), left: request.raw_input_contents.into_iter() };
    let inputs = request
        .inputs
        .into_iter()
        .map(|tensor| input(tensor, &mut raw, &model))
        .collect::<Result<Vec<_>>>()?;
    let outputs = request.outputs.into_iter().map(output).collect::<Result<Vec<_>>>()?;
    let version = request.model_version;
    Ok(Envelope { model, version, id: request.id, parameters, inputs, outputs, raw: None })
}

fn kind(parameter: &InferParameter) -> Parameter {
    match &parameter.parameter_choice {
        Some(ParameterChoice::BoolParam(_)) => Parameter::Bool,
        Some(ParameterChoice::Int64Param(value)) => Parameter::Signed(*value),
        Some(ParameterChoice::Uint64Param(_)) => Parameter::Unsigned,
        Some(ParameterChoice::DoubleParam(_)) => Parameter::Double,
        Some(ParameterChoice::StringParam(_)) => Parameter::String,
        None => Parameter::Other,
    }
}

fn json(parameter: &InferParameter) -> Value {
    match &parameter.parameter_choice {
        Some(ParameterChoice::BoolParam(value)) => (*value).into(),
        Some(ParameterChoice::Int64Param(value)) => (*value).into(),
        Some(ParameterChoice::Uint64Param(value)) => (*value).into(),
        Some(ParameterChoice::DoubleParam(value)) => (*value).into(),
        Some(ParameterChoice::StringParam(value)) => value.as_str().into(),
        None => Value::Null,
    }
}

/// `raw_input_contents`: an entry for each input that is not in a region.
struct Raw {
    given: usize,
    left: std::vec::IntoIter<Bytes>,
}

fn input(tensor: InferInputTensor, raw: &mut Raw, model: &str) -> Result<InputEnvelope> {
    let InferInputTensor { name, datatype, shape, parameters, contents } = tensor;
    let region = region(&parameters, "input", &name)?;
    let typed = contents.filter(|contents| contents.encoded_len() > 0);
    let source = match (region, typed) {
        (Some(_), Some(_)) => {
            return Err(Error::invalid(format!(
                "unexpected 'content' provided when using shared memory for input tensor '{name}' for model '{model}'"
            )));
        }
        (Some(part), None) => Source::Region(part),
        (None, Some(_)) if raw.given > 0 => {
            return Err(Error::invalid(format!(
                "contents field must not be specified when using raw_input_contents for '{name}' for model '{model}'"
            )));
        }
        (None, Some(contents)) => Source::Inline(typed_bytes(contents, &datatype, &name, model)?),
        (None, None) => Source::Inline(raw.left.next().ok_or_else(|| {
            Error::invalid(format!(
                "unable to find data for input tensor '{name}' for model '{model}' in request: expected contents, an entry of raw_input_contents or a region"
            ))
        })?),
    };
    Ok(InputEnvelope { name, datatype, shape, source })
}

/// The elements of `contents` as a tensor has them.
fn typed_bytes(contents: InferTensorContents, datatype: &str, name: &str, model: &str) -> Result<Bytes> {
    let dtype = Dtype::from_name(datatype);
    let wrong = |field: &str| {
        Error::invalid(format!(
            "unexpected explicit tensor data for input tensor '{name}' for model '{model}' of type '{field}', expected datatype '{datatype}'"
        ))
    };
    if let Some(field) = fields(&contents).find(|field| dtype.is_none_or(|dtype| *field != field_of(dtype))) {
        return Err(wrong(field));
    }
    let bytes = match dtype.ok_or_else(|| wrong("none"))? {
        Dtype::Bool => Ok(contents.bool_contents.into_iter().map(u8::from).collect()),
        Dtype::Int8 => narrow(&contents.int_contents, i8::to_le_bytes),
        Dtype::Int16 => narrow(&contents.int_contents, i16::to_le_bytes),
        Dtype::Int32 => Ok(flat(&contents.int_contents, i32::to_le_bytes)),
        Dtype::Int64 => Ok(flat(&contents.int64_contents, i64::to_le_bytes)),
        Dtype::Uint8 => narrow(&contents.uint_contents, u8::to_le_bytes),
        Dtype::Uint16 => narrow(&contents.uint_contents, u16::to_le_bytes),
        Dtype::Uint32 => Ok(flat(&contents.uint_contents, u32::to_le_bytes)),
        Dtype::Uint64 => Ok(flat(&contents.uint64_contents, u64::to_le_bytes)),
        Dtype::Fp32 => Ok(flat(&contents.fp32_contents, f32::to_le_bytes)),
        Dtype::Fp64 => Ok(flat(&contents.fp64_contents, f64::to_le_bytes)),
        Dtype::Bytes => packed(&contents.bytes_contents),
        Dtype::Fp16 | Dtype::Bf16 => return Err(wrong("none")), // they have no field, so that one was wrong before
    };
    bytes.map(Bytes::from).map_err(|why| {
        Error::invalid(format!("contents of input tensor '{name}' for model '{model}': {why} of {datatype}"))
    })
}

/// Fields that have elements, by the type that they are for.
fn fields(contents: &InferTensorContents) -> impl Iterator<Item = &'static str> {
    let given = [
        ("BOOL", contents.bool_contents.len()),
        ("INT32", contents.int_contents.len()),
        ("INT64", contents.int64_contents.len()),
        ("UINT32", contents.uint_contents.len()),
        ("UINT64", contents.uint64_contents.len()),
        ("FP32", contents.fp32_contents.len()),
        ("FP64", contents.fp64_contents.len()),
        ("BYTES", contents.bytes_contents.len()),
    ];
    given.into_iter().filter(|&(_, count)| count > 0).map(|(field, _)| field)
}

/// The field, as `fields` names it, that has elements of this type.
fn field_of(dtype: Dtype) -> &'static str {
    match dtype {
        Dtype::Int8 | Dtype::Int16 => "INT32",
        Dtype::Uint8 | Dtype::Uint16 => "UINT32",
        Dtype::Fp16 | Dtype::Bf16 => "none",
        _ => dtype.name(),
    }
}

fn flat<T: Copy, const SIZE: usize>(values: &[T], bytes: impl Fn(T) -> [u8; SIZE]) -> Vec<u8> {
    values.iter().flat_map(|&value| bytes(value)).collect()
}

fn narrow<T, N, const SIZE: usize>(
    values: &[T],
    bytes: impl Fn(N) -> [u8; SIZE],
) -> std::result::Result<Vec<u8>, String>
where
    T: Copy + std::fmt::Display + TryInto<N>,
{
    let mut narrowed = Vec::with_capacity(values.len() * SIZE);
    for &value in values {
        let value = value.try_into().map_err(|_| format!("{value} is out of the range"))?;
        narrowed.extend_from_slice(&bytes(value));
    }
    Ok(narrowed)
}

fn packed(elements: &[Bytes]) -> std::result::Result<Vec<u8>, String> {
    let mut tensor = Vec::with_capacity(strings::packed_size(elements.iter().map(Bytes::len)));
    elements.iter().try_for_each(|element| strings::push(&mut tensor, element))?;
    Ok(tensor)
}

fn output(tensor: InferRequestedOutputTensor) -> Result<OutputEnvelope> {
    let InferRequestedOutputTensor { name, parameters } = tensor;
    let region = region(&parameters, "output", &name)?;
    let classes = match parameters.get("classification").map(|value| &value.parameter_choice) {
        None => 0,
        Some(Some(ParameterChoice::Int64Param(count @ 1..))) => usize::try_from(*count).unwrap_or(usize::MAX),
        Some(Some(ParameterChoice::Int64Param(count))) => {
            return Err(Error::invalid(format!(
                "invalid value for 'classification' parameter of output '{name}', expected > 0, got {count}"
            )));
        }
        Some(_) => {
            return Err(Error::invalid(format!(
                "invalid value type for 'classification' parameter of output '{name}', expected int64_param"
            )));
        }
    };
    if region.is_some() && classes > 0 {
        return Err(Error::invalid(format!(
            "output '{name}' can't set both 'shared_memory_region' and 'classification'"
        )));
    }
    Ok(OutputEnvelope { name, region, classes })
}

fn region(parameters: &Parameters, side: &str, tensor: &str) -> Result<Option<RegionPart>> {
    if parameters.is_empty() {
        return Ok(None);
    }
    let wrong = |key: &str, what: &str| {
        Err(Error::invalid(format!(
            "invalid value for '{key}' parameter of {side} '{tensor}': expected {what}"
        )))
    };
    let unsigned = |key: &str| match parameters.get(key).map(|value| &value.parameter_choice) {
        None => Ok(None),
        Some(Some(ParameterChoice::Int64Param(value))) if *value >= 0 => Ok(Some(value.unsigned_abs())),
        Some(Some(ParameterChoice::Uint64Param(value))) => Ok(Some(*value)),
        Some(_) => wrong(key, "an int64_param that is not negative").map(|()| None),
    };
    let (offset, length) = (unsigned("shared_memory_offset")?, unsigned("shared_memory_byte_size")?);
    match (parameters.get("shared_memory_region").map(|value| &value.parameter_choice), length) {
        (Some(Some(ParameterChoice::StringParam(name))), Some(length)) => {
            Ok(Some(RegionPart { name: name.clone(), offset: offset.unwrap_or(0), length }))
        }
        (Some(Some(ParameterChoice::StringParam(_))), None) => Err(Error::invalid(format!(
            "'shared_memory_byte_size' must be specified along with 'shared_memory_region' for {side} '{tensor}'"
        ))),
        (Some(_), _) => wrong("shared_memory_region", "a string_param").map(|()| None),
        (None, None) if offset.is_none() => Ok(None),
        (None, _) => Err(Error::invalid(format!(
            "'shared_memory_byte_size' and 'shared_memory_offset' need 'shared_memory_region' for {side} '{tensor}'"
        ))),
    }
}

/// The reply as a length-prefixed gRPC message, in pieces: large outputs are pieces of their own and are not copied.
///
/// Every output has a raw entry, an empty one when its bytes are in a region: `perf_analyzer` crashes without.
pub(crate) fn encode(reply: Reply) -> Vec<Bytes> {
    let Reply { spec, id, outputs, .. } = reply;
    let raws: Vec<Bytes> = outputs.iter().map(|output| output.bytes.clone().unwrap_or_default()).collect();
    let describe = |output: crate::pending::OutputReply| {
        let tensor = &spec.outputs[output.index];
        InferOutputTensor {
            name: tensor.name.clone(),
            datatype: output.dtype.name().into(),
            shape: output.shape,
            ..Default::default()
        }
    };
    let head = ModelInferResponse {
        model_name: spec.model.clone(),
        model_version: spec.version.to_string(),
        id,
        outputs: outputs.into_iter().map(describe).collect(),
        ..Default::default()
    };
    let raw_len = |raw: &Bytes| 1 + encoded_len_varint(raw.len() as u64) + raw.len();
    let length = head.encoded_len() + raws.iter().map(raw_len).sum::<usize>();
    let small: usize = raws.iter().map(Bytes::len).filter(|&len| len <= SMALL_OUTPUT).sum();
    let mut piece = Vec::with_capacity(5 + head.encoded_len() + small + 16 * raws.len());
    let mut pieces = Vec::with_capacity(1);
    piece.push(0);
    piece.extend_from_slice(&u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes());
    head.encode_raw(&mut piece);
    for raw in raws {
        encode_key(RAW_OUTPUT, WireType::LengthDelimited, &mut piece);
        encode_varint(raw.len() as u64, &mut piece);
        if raw.len() <= SMALL_OUTPUT {
            piece.extend_from_slice(&raw);
        } else {
            pieces.push(std::mem::take(&mut piece).into());
            pieces.push(raw);
        }
    }
    if !piece.is_empty() {
        pieces.push(piece.into());
    }
    pieces
}
