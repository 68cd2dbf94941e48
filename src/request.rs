//! From an envelope to an admitted request: everything a client can get wrong is refused here, before Python is woken.
use std::{fmt::Write, sync::Arc};

use tokio::sync::oneshot;

use crate::{
    buffer::Memory,
    dtype::Dtype,
    envelope::{Envelope, InputEnvelope, OutputEnvelope, RegionPart, Source},
    error::{Error, Kind, Result},
    gate::Permit,
    pending::{HOST, Intake, LaneKey, Reply, Request, Spec, TensorSpec, Wanted},
    shm::{Place, Regions, Slice},
    stamps::now,
    wire::{ClientShm, Wire},
};

/// A call that waits for its answer. Dropping it before the answer takes the request out of the queue.
pub(crate) struct Ticket {
    intake: Arc<Intake>,
    number: u64,
    answer: oneshot::Receiver<Result<Reply>>,
    answered: bool,
    permit: Arc<Permit>,
}

impl Ticket {
    /// The answer, once an instance settled the request.
    pub(crate) fn poll(&mut self, context: &mut std::task::Context<'_>) -> std::task::Poll<Result<Reply>> {
        let answer = std::pin::Pin::new(&mut self.answer);
        std::future::Future::poll(answer, context).map(|answer| {
            self.answered = true;
            answer.unwrap_or_else(|_| {
                Err(Error::new(Kind::Internal, "the request was dropped without an answer"))
            })
        })
    }

    /// What the request and its reply are booked on.
    pub(crate) fn permit(&self) -> Arc<Permit> {
        self.permit.clone()
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

/// Checks an envelope against its model and puts the request in line; the caller rings the intake.
///
/// # Errors
/// One for each thing that a client can get wrong, with Triton's kinds and key words.
pub(crate) fn admit(wire: &Wire, mut envelope: Envelope, local: bool, permit: Arc<Permit>) -> Result<Ticket> {
    let received = now();
    let id = std::mem::take(&mut envelope.id);
    let checked = check(wire, &mut envelope, local);
    let (intake, checked) = checked.map_err(|error| error.of_request(&id))?;
    let (reply, answer) = oneshot::channel();
    let Checked { key, rows, inputs, outputs } = checked;
    let held = permit.clone();
    let request =
        Request { ticket: 0, id, rows, inputs, outputs, received, queued: now(), reply, permit: held };
    let number = intake.push(key, request)?;
    Ok(Ticket { intake, number, answer, answered: false, permit })
}

struct Checked {
    key: LaneKey,
    rows: u64,
    inputs: Vec<Memory>,
    outputs: Vec<Wanted>,
}

fn check(wire: &Wire, envelope: &mut Envelope, local: bool) -> Result<(Arc<Intake>, Checked)> {
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
    let checked = check_against(&intake.spec, &wire.regions, envelope)?;
    Ok((intake, checked))
}

fn check_against(spec: &Spec, regions: &Regions, envelope: &mut Envelope) -> Result<Checked> {
    let memories =
        envelope.inputs.iter_mut().map(|input| memory(spec, regions, input)).collect::<Result<Vec<_>>>()?;
    let outputs = wanted_outputs(spec, regions, &envelope.outputs)?;
    let order = order_inputs(spec, &envelope.inputs)?;
    let rows = rows(spec, &order)?;
    let mut key = Vec::with_capacity(8);
    for (tensor, input) in spec.inputs.iter().zip(&order) {
        check_shape(spec, tensor, input, &mut key)?;
    }
    let mut slots: Vec<_> = memories.into_iter().map(Some).collect();
    let mut inputs = Vec::with_capacity(slots.len());
    for (tensor, input) in spec.inputs.iter().zip(&order) {
        let at = envelope.inputs.iter().position(|other| std::ptr::eq(other, *input)).unwrap_or(0);
        let Some(memory) = slots[at].take() else { continue };
        check_size(spec, tensor, input, &memory)?;
        inputs.push(memory);
    }
    let key = LaneKey { shapes: key.into(), home: home(&inputs) };
    Ok(Checked { key, rows, inputs, outputs })
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

fn wanted_outputs(spec: &Spec, regions: &Regions, asked: &[OutputEnvelope]) -> Result<Vec<Wanted>> {
    if asked.is_empty() {
        return Ok(spec.outputs.iter().map(|_| Wanted::Inline).collect());
    }
    let mut wanted: Vec<_> = spec.outputs.iter().map(|_| Wanted::No).collect();
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
            return Err(Error::invalid(format!(
                "output '{name}' already exists in request for model '{model}'"
            )));
        }
        wanted[at] = place;
    }
    Ok(wanted)
}

fn names(tensors: &[TensorSpec]) -> String {
    let names: Vec<_> = tensors.iter().map(|tensor| format!("'{}'", tensor.name)).collect();
    names.join(", ")
}

/// The request's inputs in the model's order.
fn order_inputs<'a>(spec: &Spec, given: &'a [InputEnvelope]) -> Result<Vec<&'a InputEnvelope>> {
    let model = &spec.model;
    if given.len() > 2 * spec.inputs.len() + 16 {
        let (expected, got) = (spec.inputs.len(), given.len());
        return Err(Error::invalid(format!(
            "expected {expected} inputs but got {got} inputs for model '{model}'"
        )));
    }
    for (at, input) in given.iter().enumerate() {
        let name = &input.name;
        if given[..at].iter().any(|other| other.name == *name) {
            return Err(Error::invalid(format!(
                "input '{name}' already exists in request for model '{model}'"
            )));
        }
    }
    let missing: Vec<_> =
        spec.inputs.iter().filter(|tensor| given.iter().all(|input| input.name != tensor.name)).collect();
    if given.len() == spec.inputs.len() || missing.is_empty() {
        for input in given {
            if spec.inputs.iter().all(|tensor| tensor.name != input.name) {
                return Err(Error::invalid(format!(
                    "unexpected inference input '{}' for model '{model}'; it has {}",
                    input.name,
                    names(&spec.inputs)
                )));
            }
        }
    }
    if !missing.is_empty() {
        let mut text = format!(
            "expected {} inputs but got {} inputs for model '{model}'.",
            spec.inputs.len(),
            given.len()
        );
        let missing: Vec<_> = missing.iter().map(|tensor| format!("'{}'", tensor.name)).collect();
        let _ = write!(
            text,
            " Got input(s) {:?}, but missing required input(s) [{}].",
            given.iter().map(|input| &input.name).collect::<Vec<_>>(),
            missing.join(", ")
        );
        return Err(Error::invalid(text));
    }
    let find = |tensor: &TensorSpec| given.iter().find(|input| input.name == tensor.name);
    Ok(spec.inputs.iter().filter_map(find).collect())
}

/// The batch size that all inputs agree on; 1 where the model does not batch.
fn rows(spec: &Spec, inputs: &[&InputEnvelope]) -> Result<u64> {
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

fn check_shape(spec: &Spec, tensor: &TensorSpec, input: &InputEnvelope, key: &mut Vec<i64>) -> Result<()> {
    let (model, name) = (&spec.model, &tensor.name);
    if Dtype::from_name(&input.datatype) != Some(tensor.dtype) {
        return Err(Error::invalid(format!(
            "inference input '{name}' data-type is '{}', but model '{model}' expects '{}'",
            input.datatype,
            tensor.dtype.name()
        )));
    }
    let shape = &input.shape[usize::from(spec.max_batch > 0)..];
    let fits = shape.len() == tensor.dims.len()
        && shape.iter().zip(&tensor.dims).all(|(&got, &want)| got >= 0 && (want < 0 || want == got));
    if fits {
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

/// `[-1,3,8]`, as Triton prints shapes.
fn compact(shape: &[i64]) -> String {
    let dims: Vec<_> = shape.iter().map(ToString::to_string).collect();
    format!("[{}]", dims.join(","))
}

fn check_size(spec: &Spec, tensor: &TensorSpec, input: &InputEnvelope, memory: &Memory) -> Result<()> {
    let (model, name) = (&spec.model, &tensor.name);
    let Some(expected) = tensor.dtype.bytes(&input.shape) else {
        return Err(Error::invalid(format!(
            "the size of input '{name}' for model '{model}' overflows: {} of {}",
            tensor.dtype.name(),
            compact(&input.shape)
        )));
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
