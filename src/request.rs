//! From an envelope to an admitted request: everything a client can get wrong is refused here, before Python is woken.
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::oneshot;

use crate::{
    buffer::Memory,
    classify::{classify, is_served},
    dtype::Dtype,
    envelope::{Envelope, InputEnvelope, OutputEnvelope, RegionPart, Source},
    error::{Error, Kind, Result},
    gate::Permit,
    pending::{HOST, Intake, LaneKey, Reply, Request, Spec, TensorSpec, Wanted},
    shape::{compact, elements, fits},
    shm::{Place, Regions, Slice},
    stamps::{RequestStamps, now},
    strings,
    wire::{ClientShm, Wire},
};

/// A call that waits for its answer. Dropping it before the answer takes the request out of the queue.
pub(crate) struct Ticket {
    intake: Arc<Intake>,
    number: u64,
    answer: oneshot::Receiver<Result<Reply>>,
    answered: bool,
    permit: Arc<Permit>,
    classes: Classes,
}

/// Outputs that are wanted as their largest elements, and how many of them.
type Classes = Vec<(usize, usize)>;

impl Ticket {
    /// The answer, once an instance settled the request.
    pub(crate) fn poll(&mut self, context: &mut std::task::Context<'_>) -> std::task::Poll<Result<Reply>> {
        let answer = std::pin::Pin::new(&mut self.answer);
        std::future::Future::poll(answer, context).map(|answer| {
            self.answered = true;
            let answer = answer.unwrap_or_else(|_| {
                Err(Error::new(Kind::Internal, "the request was dropped without an answer"))
            });
            answer.map(|reply| self.classified(reply))
        })
    }

    /// What the request and its reply are booked on.
    pub(crate) fn permit(&self) -> Arc<Permit> {
        self.permit.clone()
    }

    fn classified(&self, mut reply: Reply) -> Reply {
        if self.classes.is_empty() {
            return reply;
        }
        let spec = reply.spec.clone();
        let classified = reply.outputs.into_iter().map(|output| {
            let tensor = &spec.outputs[output.index];
            let rows = if spec.max_batch > 0 { output.shape.first().copied() } else { None };
            match self.classes.iter().find(|(index, _)| *index == output.index) {
                Some(&(_, count)) => classify(output, tensor, rows, count),
                None => output,
            }
        });
        reply.outputs = classified.collect();
        reply
    }

    pub(crate) fn intake(&self) -> &Arc<Intake> {
        &self.intake
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if !self.answered {
            self.intake.cancel(self.number);
        }
    }
}

/// Checks an envelope, whose message was complete at `arrived`, against its model and puts the request in line; the caller rings
/// the intake.
///
/// # Errors
/// One for each thing that a client can get wrong, with Triton's kinds and key words.
pub(crate) fn admit(
    wire: &Wire,
    mut envelope: Envelope,
    local: bool,
    permit: Arc<Permit>,
    arrived: u64,
) -> Result<Ticket> {
    let received = now();
    let id = std::mem::take(&mut envelope.id);
    let parameters = std::mem::take(&mut envelope.parameters);
    let checked = check(wire, &mut envelope, local, &permit);
    let (intake, checked) = checked.map_err(|error| error.of_request(&id))?;
    let (reply, answer) = oneshot::channel();
    let Checked { key, rows, inputs, outputs, classes } = checked;
    let held = permit.clone();
    let stamps = RequestStamps { arrived, received, queued: now() };
    let request = Request { ticket: 0, id, parameters, rows, inputs, outputs, stamps, reply, permit: held };
    let number = intake.push(key, request)?;
    Ok(Ticket { intake, number, answer, answered: false, permit, classes })
}

struct Checked {
    key: LaneKey,
    rows: u64,
    inputs: Vec<Memory>,
    outputs: Vec<Wanted>,
    classes: Classes,
}

fn check(
    wire: &Wire,
    envelope: &mut Envelope,
    local: bool,
    permit: &Permit,
) -> Result<(Arc<Intake>, Checked)> {
    if wire.stopping() {
        return Err(Error::unavailable("Server is stopping"));
    }
    let intake = wire.models.find(&envelope.model, &envelope.version)?;
    if (envelope.inputs.iter().any(|input| matches!(input.source, Source::Region(_)))
        || envelope.outputs.iter().any(|output| output.region.is_some()))
        && let Some(refusal) = wire.client_shm.refuses(local)
    {
        return Err(refusal);
    }
    if let Some(content) = envelope.raw.take() {
        envelope.inputs = vec![raw_input(&intake.spec, content)?];
    }
    let checked = check_against(&intake.spec, &wire.regions, envelope, permit)?;
    Ok((intake, checked))
}

/// The input that a body of nothing else is, which tells no name, type or shape.
fn raw_input(spec: &Spec, content: Bytes) -> Result<InputEnvelope> {
    let model = &spec.model;
    let [tensor] = spec.inputs.as_slice() else {
        return Err(Error::invalid(format!(
            "Raw request must only have 1 input (found {}) to be deduced but got {} inputs in '{model}' model configuration",
            spec.inputs.len(),
            spec.inputs.len()
        )));
    };
    let (content, shape) = if tensor.dtype == Dtype::Bytes {
        (one_string(&content)?, vec![1; tensor.dims.len()])
    } else {
        let shape = deduced(tensor, content.len()).ok_or_else(|| {
            Error::invalid(format!(
                "The shape of Raw request's input '{}' for model '{model}' can not be deduced from {} bytes: its dims are {}",
                tensor.name,
                content.len(),
                compact(&tensor.dims)
            ))
        })?;
        (content, shape)
    };
    let batch = if spec.max_batch > 0 { vec![1] } else { vec![] };
    Ok(InputEnvelope {
        name: tensor.name.clone(),
        datatype: tensor.dtype.name().into(),
        shape: [batch, shape].concat(),
        source: Source::Inline(content),
    })
}

fn one_string(content: &[u8]) -> Result<Bytes> {
    let mut tensor = Vec::with_capacity(content.len() + 4);
    strings::push(&mut tensor, content).map_err(Error::invalid)?;
    Ok(tensor.into())
}

/// The dims with the one that is free, if any, as the bytes say.
fn deduced(tensor: &TensorSpec, bytes: usize) -> Option<Vec<i64>> {
    let fixed: Vec<i64> = tensor.dims.iter().map(|&dim| if dim < 0 { 1 } else { dim }).collect();
    if tensor.dims.iter().filter(|dim| **dim < 0).count() > 1 {
        return None;
    }
    let free = i64::try_from(bytes.checked_div(tensor.dtype.bytes(&fixed)?)?).ok()?;
    Some(tensor.dims.iter().map(|&dim| if dim < 0 { free } else { dim }).collect())
}

fn check_against(
    spec: &Spec,
    regions: &Regions,
    envelope: &mut Envelope,
    permit: &Permit,
) -> Result<Checked> {
    let memories =
        envelope.inputs.iter_mut().map(|input| memory(spec, regions, input)).collect::<Result<Vec<_>>>()?;
    let (outputs, classes) = wanted_outputs(spec, regions, &envelope.outputs)?;
    let order = order_inputs(spec, &envelope.inputs)?;
    let given = order.iter().flatten().map(|&at| &envelope.inputs[at]);
    let rows = rows(spec, given)?;
    let mut shapes = Vec::with_capacity(8);
    for (tensor, at) in spec.inputs.iter().zip(&order) {
        check_shape(spec, tensor, at.map(|at| &envelope.inputs[at]), &mut shapes)?;
    }
    let mut slots: Vec<_> = memories.into_iter().map(Some).collect();
    let mut inputs = Vec::with_capacity(spec.inputs.len());
    for (tensor, at) in spec.inputs.iter().zip(&order) {
        let taken = at.and_then(|at| Some((&envelope.inputs[at], slots[at].take()?)));
        inputs.push(match taken {
            None => Memory::Inline(Bytes::new()),
            Some((input, memory)) if tensor.dtype == Dtype::Bytes => {
                check_strings(spec, input, memory, permit)?
            }
            Some((input, memory)) => {
                check_size(spec, tensor, input, &memory)?;
                memory
            }
        });
    }
    let key = LaneKey { shapes: shapes.into(), home: home(&inputs) };
    Ok(Checked { key, rows, inputs, outputs, classes })
}

/// The memory of a BYTES input, checked; a copy where clients could still write in it.
fn check_strings(spec: &Spec, input: &InputEnvelope, memory: Memory, permit: &Permit) -> Result<Memory> {
    let (model, name) = (&spec.model, &input.name);
    let memory = match memory {
        Memory::Inline(bytes) => bytes,
        Memory::Region(slice) if matches!(slice.place(), Place::Device(_)) => {
            return Err(Error::unsupported(format!(
                "BYTES input '{name}' for model '{model}' can not be in CUDA shared memory"
            )));
        }
        Memory::Region(slice) => {
            permit.grow(slice.len())?;
            let (bytes, _) = Memory::Region(slice.clone()).to_reply()?;
            slice.check_intact()?;
            bytes
        }
    };
    let Some(count) = elements(&input.shape) else {
        return Err(overflows(spec, input));
    };
    strings::check(&memory, count).map_err(|malformed| {
        let of = format!("inference input '{name}' for model '{model}'");
        Error::invalid(malformed.describe(count, of))
    })?;
    if spec.text_only && strings::Elements::new(&memory).any(|element| str::from_utf8(element).is_err()) {
        return Err(Error::invalid(format!(
            "an element of BYTES input '{name}' for model '{model}' is not UTF-8, which its backend needs"
        )));
    }
    Ok(Memory::Inline(memory))
}

/// The device that all inputs are in, if so.
fn home(inputs: &[Memory]) -> i32 {
    let mut places = inputs.iter().map(|memory| match memory {
        Memory::Region(slice) => slice.place(),
        Memory::Inline(_) => Place::Pageable,
    });
    let first = places.next();
    match first {
        Some(Place::Device(device)) if places.all(|place| Some(place) == first) => device,
        _ => HOST,
    }
}

fn memory(spec: &Spec, regions: &Regions, input: &mut InputEnvelope) -> Result<Memory> {
    match &mut input.source {
        Source::Inline(bytes) => Ok(Memory::Inline(bytes.clone())),
        Source::Region(part) => lease(spec, regions, part).map(Memory::Region),
    }
}

fn lease(spec: &Spec, regions: &Regions, part: &RegionPart) -> Result<Slice> {
    let slice = regions.lease(&part.name, part.offset, part.length)?;
    if !spec.on_device && matches!(slice.place(), Place::Device(_)) {
        let (model, region) = (&spec.model, &part.name);
        return Err(Error::unsupported(format!(
            "model '{model}' runs on the CPU, which cannot reach CUDA shared memory region '{region}'"
        )));
    }
    Ok(slice)
}

fn wanted_outputs(
    spec: &Spec,
    regions: &Regions,
    asked: &[OutputEnvelope],
) -> Result<(Vec<Wanted>, Classes)> {
    if asked.is_empty() {
        return Ok((spec.outputs.iter().map(|_| Wanted::Inline).collect(), vec![]));
    }
    let (mut wanted, mut classes): (Vec<_>, _) = (spec.outputs.iter().map(|_| Wanted::No).collect(), vec![]);
    for output in asked {
        let (name, model) = (&output.name, &spec.model);
        let place = match &output.region {
            None => Wanted::Inline,
            Some(part) => Wanted::Region(lease(spec, regions, part)?),
        };
        let Some(at) = spec.outputs.iter().position(|tensor| tensor.name == *name) else {
            return Err(Error::invalid(format!(
                "unexpected inference output '{name}' for model '{model}'; it has {}",
                names(&spec.outputs)
            )));
        };
        if !matches!(wanted[at], Wanted::No) {
            continue; // like Triton: asked for twice, the first one counts
        }
        wanted[at] = place;
        if output.classes > 0 {
            check_classes(spec, &spec.outputs[at])?;
            classes.push((at, output.classes));
        }
    }
    Ok((wanted, classes))
}

fn check_classes(spec: &Spec, tensor: &TensorSpec) -> Result<()> {
    if is_served(tensor.dtype) {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "class result not available for output '{}' of model '{}' due to unsupported type '{}'",
        tensor.name,
        spec.model,
        tensor.dtype.name()
    )))
}

fn names(tensors: &[TensorSpec]) -> String {
    quoted(tensors.iter().map(|tensor| tensor.name.as_str()), ", ")
}

fn quoted<'a>(names: impl Iterator<Item = &'a str>, separator: &str) -> String {
    let names: Vec<_> = names.map(|name| format!("'{name}'")).collect();
    names.join(separator)
}

/// Where each input of the model is among those given; `None` for an optional one that is not.
fn order_inputs(spec: &Spec, given: &[InputEnvelope]) -> Result<Vec<Option<usize>>> {
    let model = &spec.model;
    let needed = spec.inputs.iter().filter(|tensor| !tensor.optional).count();
    let (most, got) = (spec.inputs.len(), given.len());
    let expected = if needed == most {
        format!("expected {most} inputs but got {got} inputs for model '{model}'")
    } else {
        format!(
            "expected number of inputs between {needed} and {most} but got {got} inputs for model '{model}'"
        )
    };
    if got > 2 * most + 16 {
        return Err(Error::invalid(expected));
    }
    for (at, input) in given.iter().enumerate() {
        let name = &input.name;
        if given[..at].iter().any(|other| other.name == *name) {
            return Err(Error::invalid(format!(
                "input '{name}' already exists in request for model '{model}'"
            )));
        }
    }
    let position = |tensor: &TensorSpec| given.iter().position(|input| input.name == tensor.name);
    let order: Vec<_> = spec.inputs.iter().map(position).collect();
    let unexpected = given.iter().find(|input| spec.inputs.iter().all(|tensor| tensor.name != input.name));
    if let Some(input) = unexpected.filter(|_| got >= needed) {
        let counts = if got > most { format!("{expected}: ") } else { String::new() };
        return Err(Error::invalid(format!(
            "{counts}unexpected inference input '{}' for model '{model}'; it has {}",
            input.name,
            names(&spec.inputs)
        )));
    }
    let missing = spec.inputs.iter().zip(&order).filter(|(tensor, at)| at.is_none() && !tensor.optional);
    let missing = quoted(missing.map(|(tensor, _)| tensor.name.as_str()), ",");
    if missing.is_empty() {
        return Ok(order);
    }
    let given = quoted(given.iter().map(|input| input.name.as_str()), ",");
    Err(Error::invalid(format!(
        "{expected}. Got input(s) [{given}], but missing required input(s) [{missing}]. Please provide all required input(s)."
    )))
}

/// The batch size that all inputs agree on; 1 where the model does not batch.
fn rows<'a>(spec: &Spec, inputs: impl Iterator<Item = &'a InputEnvelope>) -> Result<u64> {
    let Spec { model, max_batch, .. } = spec;
    if *max_batch == 0 {
        return Ok(1);
    }
    let mut batch = None;
    for input in inputs {
        let Some(&rows) = input.shape.first() else {
            return Err(Error::invalid(format!(
                "input '{}' has no shape but model requires batch dimension for '{model}'",
                input.name
            )));
        };
        if batch.is_some_and(|batch| batch != rows) {
            return Err(Error::invalid(format!(
                "input '{}' batch size does not match other inputs for '{model}'",
                input.name
            )));
        }
        batch = Some(rows);
    }
    let rows = batch.unwrap_or(1);
    if rows < 1 {
        return Err(Error::invalid(format!(
            "inference request batch-size must be at least 1 for '{model}', got {rows}"
        )));
    }
    if rows > *max_batch {
        return Err(Error::invalid(format!(
            "inference request batch-size must be <= {max_batch} for '{model}', got {rows}"
        )));
    }
    Ok(rows.unsigned_abs())
}

/// Checks type and shape of an input, if it is given, and appends what a `LaneKey` has of it.
fn check_shape(
    spec: &Spec,
    tensor: &TensorSpec,
    input: Option<&InputEnvelope>,
    key: &mut Vec<i64>,
) -> Result<()> {
    if tensor.optional {
        key.push(i64::from(input.is_some()));
    }
    let Some(input) = input else {
        key.extend(std::iter::repeat_n(0, tensor.dims.len()));
        return Ok(());
    };
    let (model, name) = (&spec.model, &tensor.name);
    if Dtype::from_name(&input.datatype) != Some(tensor.dtype) {
        return Err(Error::invalid(format!(
            "inference input '{name}' data-type is '{}', but model '{model}' expects '{}'",
            input.datatype,
            tensor.dtype.name()
        )));
    }
    let shape = &input.shape[usize::from(spec.max_batch > 0)..];
    if fits(shape, &tensor.dims) {
        key.extend_from_slice(shape);
        return Ok(());
    }
    if input.shape.iter().any(|&dim| dim < 0) {
        return Err(Error::invalid(format!(
            "All input dimensions should be specified for input '{name}' for model '{model}', got {:?}",
            input.shape
        )));
    }
    let (batch, note) = match spec.max_batch {
        0 => (vec![], ""),
        _ => (
            vec![-1],
            " NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be prepended to each input shape.",
        ),
    };
    let expected = [batch.as_slice(), &tensor.dims].concat();
    Err(Error::invalid(format!(
        "unexpected shape for input '{name}' for model '{model}'. Expected {}, got {}.{note}",
        compact(&expected),
        compact(&input.shape)
    )))
}

fn overflows(spec: &Spec, input: &InputEnvelope) -> Error {
    Error::invalid(format!(
        "the size of input '{}' for model '{}' overflows: {} of {}",
        input.name,
        spec.model,
        input.datatype,
        compact(&input.shape)
    ))
}

fn check_size(spec: &Spec, tensor: &TensorSpec, input: &InputEnvelope, memory: &Memory) -> Result<()> {
    let (model, name) = (&spec.model, &tensor.name);
    let Some(expected) = tensor.dtype.bytes(&input.shape) else {
        return Err(overflows(spec, input));
    };
    if memory.len() == expected {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "input byte size mismatch for input '{name}' for model '{model}'. Expected {expected}, got {}",
        memory.len()
    )))
}

impl ClientShm {
    /// Why a client may not use the server's shared memory, if so.
    pub(crate) fn refuses(self, local: bool) -> Option<Error> {
        match self {
            Self::Always => None,
            Self::Local if local => None,
            Self::Local => Some(Error::unsupported(
                "Client shared memory is disabled for clients of other hosts (--allow-client-shm=local)",
            )),
            Self::Never => {
                Some(Error::unsupported("Client shared memory is disabled (--allow-client-shm=false)"))
            }
        }
    }
}
