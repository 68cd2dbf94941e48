//! The inference messages of gRPC: request to envelope, reply to bytes.
use bytes::Bytes;
use prost::{
    Message,
    encoding::{WireType, encode_key, encode_varint, encoded_len_varint},
};

use crate::{
    envelope::{Envelope, InputEnvelope, OutputEnvelope, RegionPart, Source},
    error::{Error, Result},
    pending::Reply,
};

#[allow(clippy::all, clippy::pedantic, unreachable_pub)] // generated
mod messages {
    include!(concat!(env!("OUT_DIR"), "/inference.rs"));
}

use messages::{
    InferParameter, ModelInferRequest, ModelInferResponse,
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
/// `InvalidArgument` for bytes that are no such message and for references that contradict each other, `Unsupported` for what
/// is not served yet.
pub(crate) fn decode(message: Bytes) -> Result<Envelope> {
    let request = ModelInferRequest::decode(message)
        .map_err(|error| Error::invalid(format!("failed to parse ModelInferRequest: {error}")))?;
    let id = request.id.clone();
    envelope(request).map_err(|error| error.of_request(&id))
}

fn envelope(request: ModelInferRequest) -> Result<Envelope> {
    let model = request.model_name;
    let given = request.raw_input_contents.len();
    let mut raw = request.raw_input_contents.into_iter();
    let inputs = request
        .inputs
        .into_iter()
        .map(|tensor| input(tensor, &mut raw, &model))
        .collect::<Result<Vec<_>>>()?;
    if raw.len() > 0 {
        let used = given - raw.len();
        return Err(Error::invalid(format!(
            "unexpected raw_input_contents for model '{model}': {given} entries for {used} inputs that are not in shared memory"
        )));
    }
    let outputs =
        request.outputs.into_iter().map(|tensor| output(tensor, &model)).collect::<Result<Vec<_>>>()?;
    Ok(Envelope { model, version: request.model_version, id: request.id, inputs, outputs })
}

fn input(
    tensor: InferInputTensor,
    raw: &mut impl Iterator<Item = Bytes>,
    model: &str,
) -> Result<InputEnvelope> {
    let InferInputTensor { name, datatype, shape, parameters, contents } = tensor;
    let source = match region(&parameters, "input", &name)? {
        Some(part) => Source::Region(part),
        None if contents.is_some_and(|contents| contents.encoded_len() > 0) => {
            return Err(Error::unsupported(format!(
                "typed contents of input '{name}' for model '{model}' are not served yet; use raw_input_contents"
            )));
        }
        None => Source::Inline(raw.next().ok_or_else(|| {
            Error::invalid(format!("expected raw_input_contents for input '{name}' for model '{model}', there is no entry left for it"))
        })?),
    };
    Ok(InputEnvelope { name, datatype, shape, source })
}

fn output(tensor: InferRequestedOutputTensor, model: &str) -> Result<OutputEnvelope> {
    let InferRequestedOutputTensor { name, parameters } = tensor;
    if parameters.contains_key("classification") {
        return Err(Error::unsupported(format!(
            "classification of output '{name}' for model '{model}' is not served yet"
        )));
    }
    let region = region(&parameters, "output", &name)?;
    Ok(OutputEnvelope { name, region })
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
    let Reply { spec, id, outputs } = reply;
    let raws: Vec<Bytes> = outputs.iter().map(|output| output.bytes.clone().unwrap_or_default()).collect();
    let describe = |output: crate::pending::OutputReply| {
        let tensor = &spec.outputs[output.index];
        InferOutputTensor {
            name: tensor.name.clone(),
            datatype: tensor.dtype.name().into(),
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
