//! The hand-off to instance threads: Python waits, takes a batch, has its tensors placed, and settles it.
//!
//! Addresses cross here, bytes do not. Everything is per batch, so the interpreter's share of a request shrinks with it.
#![allow(clippy::needless_pass_by_value)] // PyO3 hands arguments over as values
use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use pyo3::{
    exceptions::{PyTypeError, PyValueError},
    prelude::*,
    types::{PyBytes, PyList, PyString, PyTuple},
};

use crate::{
    buffer::{self, Memory},
    dma,
    dtype::Dtype,
    error::{Error, Kind, Result},
    histogram::Histogram,
    pending::{self, LaneKey, OutputReply, Patience, Reply, Request, Spec, TensorSpec, Thresholds, Wanted},
    shape::elements,
    shm::Slice,
    stamps::{self, BatchStamps, Duration, Failure, Stages, now},
    strings,
};

/// Copies below this many bytes keep the interpreter lock: giving it up and getting it back costs more.
const SHORT_COPY: usize = 64 << 10;

/// Name, dtype, dims, reshape, optional, labels.
type TensorTuple = (String, String, Vec<i64>, Option<Vec<i64>>, bool, Vec<String>);
type LaneTuple = (u64, u64, Vec<u64>, i32);
/// Name, requests in each bucket, ns of all.
type StageTuple = (&'static str, Vec<u64>, u64);
type BatchSumsTuple = (u64, (u64, u64), (u64, u64), (u64, u64));

/// The queue of one model version, seen from its instances and from control.
#[pyclass(frozen, module = "headrace._wire")]
pub(crate) struct Intake {
    pub(crate) inner: Arc<pending::Intake>,
}

fn tensor_specs(tensors: Vec<TensorTuple>) -> PyResult<Vec<TensorSpec>> {
    let spec = |(name, dtype, dims, reshape, optional, labels): TensorTuple| {
        let known = Dtype::from_name(&dtype)
            .ok_or_else(|| PyValueError::new_err(format!("unknown datatype {dtype}")))?;
        Ok(TensorSpec { name, dtype: known, dims, reshape, optional, labels })
    };
    tensors.into_iter().map(spec).collect()
}

fn pair(duration: Duration) -> (u64, u64) {
    (duration.count, duration.ns)
}

#[pymethods]
impl Intake {
    #[new]
    #[pyo3(signature = (model, version, max_batch_size, inputs, outputs, on_device, text_only = false))]
    fn new(
        model: String,
        version: i64,
        max_batch_size: i64,
        inputs: Vec<TensorTuple>,
        outputs: Vec<TensorTuple>,
        on_device: bool,
        text_only: bool,
    ) -> PyResult<Self> {
        let (inputs, outputs) = (tensor_specs(inputs)?, tensor_specs(outputs)?);
        let spec = Spec { model, version, max_batch: max_batch_size, inputs, outputs, on_device, text_only };
        Ok(Self { inner: Arc::new(pending::Intake::new(spec)) })
    }

    /// Sleeps until a lane reaches its threshold of rows (`(lane, rows)`; 1 for lanes that are not named), or `until` (ns of
    /// `now()`) is reached, or there were other than `nudges` nudges of the thread's `device`. Then `(now, draining, nudges,
    /// lanes)` with, for each lane, its number, when its oldest request was queued, the rows of each request until they pass
    /// `limit`, and the device that its tensors are in, or -1. `None`: the intake is closed.
    #[pyo3(signature = (thresholds, until, device, nudges, limit))]
    fn wait(
        &self,
        py: Python<'_>,
        thresholds: Thresholds,
        until: Option<u64>,
        device: i32,
        nudges: Option<u64>,
        limit: u64,
    ) -> Option<(u64, bool, u64, Vec<LaneTuple>)> {
        let patience = Patience { thresholds, until, device, nudges };
        let pending = py.detach(|| self.inner.wait(&patience, limit))?;
        let lanes =
            pending.lanes.into_iter().map(|view| (view.lane, view.oldest, view.rows, view.home)).collect();
        Some((pending.now, pending.draining, pending.nudges, lanes))
    }

    /// Has the instances on a device that wait look again.
    fn nudge(&self, device: i32) {
        self.inner.nudge(device);
    }

    /// Has the next instance look that has what it waits for.
    fn ring(&self) {
        self.inner.ring();
    }

    /// The `count` oldest requests of `lane`, which leave the queue for `reason`; `None` when there are fewer, or they have more
    /// rows than a batch may have, because another thread was faster: decide anew.
    fn take(&self, lane: u64, count: usize, reason: &str) -> Option<Batch> {
        let (key, requests) = self.inner.take(lane, count)?;
        Batch::new(self.inner.clone(), key, requests, reason)
    }

    /// What waits is served at once from now on, without waiting for company.
    fn drain(&self) {
        self.inner.drain();
    }

    /// Ends the intake: instances get `None`, requests that still wait get an error that says what became of the model.
    #[pyo3(signature = (why = "was unloaded"))]
    fn close(&self, why: &str) {
        self.inner.close(why);
    }

    /// Requests that wait now.
    fn waiting(&self) -> usize {
        self.inner.waiting()
    }

    /// An instance cannot serve just now, for `why`; `None`: it can again. The model is not ready meanwhile.
    #[pyo3(signature = (instance, why))]
    fn set_ailing(&self, instance: String, why: Option<String>) {
        self.inner.set_ailing(instance, why);
    }

    /// Why the model is not ready: an instance that cannot serve just now.
    fn ailing(&self) -> Option<String> {
        self.inner.ailing().map(|(instance, why)| format!("instance '{instance}': {why}"))
    }

    /// Batches that instances hold now.
    fn held(&self) -> usize {
        self.inner.held().0
    }

    /// One consistent snapshot; durations are `(count, ns)`.
    fn statistics(&self) -> Statistics {
        Statistics::of(self.inner.snapshot(), &[])
    }
}

/// Sums of one model version since it was loaded.
#[pyclass(frozen, get_all, module = "headrace._wire")]
pub(crate) struct Statistics {
    success: (u64, u64),
    fail: (u64, u64),
    failures: BTreeMap<&'static str, u64>,
    queue: (u64, u64),
    input: (u64, u64),
    infer: (u64, u64),
    output: (u64, u64),
    inferences: u64,
    executions: u64,
    last_inference: u64,
    batches: Vec<BatchSumsTuple>,
    reasons: BTreeMap<String, u64>,
    copied_in: u64,
    copied_out: u64,
    fallbacks: BTreeMap<String, u64>,
    stages: Vec<StageTuple>,
    recent: Vec<(&'static str, Vec<f64>)>,
}

impl Statistics {
    pub(crate) fn of(sums: stamps::Statistics, quantiles: &[f64]) -> Self {
        let batch = |(&rows, sums): (&u64, &stamps::BatchSums)| {
            (rows, pair(sums.input), pair(sums.infer), pair(sums.output))
        };
        let histogram = |(name, times): (&'static str, &Histogram)| (name, times.counts.to_vec(), times.ns);
        Self {
            success: pair(sums.success),
            fail: pair(sums.fail),
            failures: Failure::NAMES.into_iter().zip(sums.failures).collect(),
            queue: pair(sums.queue),
            input: pair(sums.input),
            infer: pair(sums.infer),
            output: pair(sums.output),
            inferences: sums.inferences,
            executions: sums.executions,
            last_inference: sums.last_inference,
            batches: sums.batches.iter().map(batch).collect(),
            stages: Stages::NAMES.into_iter().zip(sums.stages.all()).map(histogram).collect(),
            recent: sums.recent.map(|recent| recent.read(quantiles)).unwrap_or_default(),
            reasons: sums.reasons,
            copied_in: sums.copied_in,
            copied_out: sums.copied_out,
            fallbacks: sums.fallbacks,
        }
    }
}

/// Memory of the arena, 64-byte aligned. It goes back when it was handed to a reply that was sent, or when it is dropped.
#[pyclass(module = "headrace._wire")]
pub(crate) struct Buffer {
    inner: Option<buffer::Buffer>,
}

#[pymethods]
impl Buffer {
    #[new]
    fn new(nbytes: usize) -> Result<Self> {
        Ok(Self { inner: Some(buffer::Buffer::new(nbytes)?) })
    }

    #[getter]
    fn address(&self) -> PyResult<usize> {
        self.inner.as_ref().map(buffer::Buffer::address).ok_or_else(given_away)
    }

    #[getter]
    fn nbytes(&self) -> PyResult<usize> {
        self.inner.as_ref().map(buffer::Buffer::len).ok_or_else(given_away)
    }

    /// Bytes of the block behind it, which is what is page-locked.
    #[getter]
    fn capacity(&self) -> PyResult<usize> {
        self.inner.as_ref().map(buffer::Buffer::capacity).ok_or_else(given_away)
    }

    /// The whole block has been page-locked; it will be used again for page-locked buffers only.
    fn mark_pinned(&mut self) -> PyResult<()> {
        self.inner.as_mut().map(buffer::Buffer::mark_pinned).ok_or_else(given_away)
    }

    /// A page-locked buffer that was used before; `None` when there is none of this size.
    #[staticmethod]
    fn reuse_pinned(nbytes: usize) -> Option<Self> {
        buffer::Buffer::reuse_pinned(nbytes).map(|inner| Self { inner: Some(inner) })
    }
}

fn given_away() -> PyErr {
    PyValueError::new_err("the buffer was given to a reply")
}

/// Requests that one execution answers. A batch that is dropped without being settled fails its requests.
#[pyclass(module = "headrace._wire")]
pub(crate) struct Batch {
    pub(crate) intake: Arc<pending::Intake>,
    key: LaneKey,
    pub(crate) requests: Vec<Answering>,
    rows: u64,
    first_ticket: u64,
    taken: u64,
    pub(crate) copied_in: u64,
    copied_out: u64,
    fallbacks: Vec<String>,
}

/// A request and what there is of its answer so far.
pub(crate) struct Answering {
    pub(crate) request: Request,
    pub(crate) outputs: Vec<OutputReply>,
    pub(crate) error: Option<Error>,
}

impl Batch {
    fn new(intake: Arc<pending::Intake>, key: LaneKey, requests: Vec<Request>, reason: &str) -> Option<Self> {
        let (first_ticket, taken) = (requests.first()?.ticket, now());
        let rows = requests.iter().map(|request| request.rows).sum();
        {
            let mut statistics = intake.statistics.lock();
            match statistics.reasons.get_mut(reason) {
                Some(count) => *count += 1,
                None => drop(statistics.reasons.insert(reason.into(), 1)),
            }
        }
        let outputs = intake.spec.outputs.len();
        let answering = |request| Answering { request, outputs: Vec::with_capacity(outputs), error: None };
        let requests = requests.into_iter().map(answering).collect();
        Some(Self {
            intake,
            key,
            requests,
            rows,
            first_ticket,
            taken,
            copied_in: 0,
            copied_out: 0,
            fallbacks: vec![],
        })
    }

    /// What the key says of an input: dimensions without the batch dimension, behind a mark for an optional one.
    fn key_part(&self, input: usize) -> &[i64] {
        let tensors = &self.intake.spec.inputs;
        let start: usize = tensors.iter().take(input).map(TensorSpec::key_length).sum();
        &self.key.shapes[start..start + tensors[input].key_length()]
    }

    /// Dimensions of an input without the batch dimension, as the backend has them.
    pub(crate) fn dims(&self, input: usize) -> Vec<i64> {
        let tensor = &self.intake.spec.inputs[input];
        tensor.to_backend(&self.key_part(input)[usize::from(tensor.optional)..])
    }

    fn inputs(&self, position: usize) -> impl Iterator<Item = &Memory> {
        self.requests.iter().map(move |answering| &answering.request.inputs[position])
    }

    /// Each request's wish for an output, and the bytes of its part.
    fn outputs(&self, output: usize, row_bytes: usize) -> impl Iterator<Item = (&Wanted, usize)> {
        self.requests.iter().map(move |answering| {
            let rows = usize::try_from(answering.request.rows).unwrap_or(usize::MAX);
            (&answering.request.outputs[output], rows.saturating_mul(row_bytes))
        })
    }

    /// Bytes of each request's part of an output of the whole batch; where there are bytes, they must be just these parts.
    fn part_lengths(&self, output: usize, shape: &[i64], whole: Option<&[u8]>) -> PyResult<Vec<usize>> {
        let spec = &self.intake.spec;
        let tensor = &spec.outputs[output];
        let dims = if spec.max_batch == 0 { shape } else { shape.get(1..).unwrap_or_default() };
        let wrong_rows = spec.max_batch > 0 && shape.first() != Some(&self.rows.cast_signed());
        let lengths = match whole {
            _ if wrong_rows => None,
            Some(whole) if tensor.dtype == Dtype::Bytes => {
                elements(dims).and_then(|row| self.string_lengths(whole, row))
            }
            _ => tensor
                .dtype
                .bytes(dims)
                .map(|row| self.outputs(output, row).map(|(_, bytes)| bytes).collect()),
        };
        let fits = |lengths: &Vec<usize>| {
            whole.is_none_or(|whole| {
                lengths.iter().try_fold(0, |sum: usize, &more| sum.checked_add(more)) == Some(whole.len())
            })
        };
        lengths.filter(fits).ok_or_else(|| {
            let (name, rows, bytes) = (&tensor.name, self.rows, whole.map_or(0, <[u8]>::len));
            PyValueError::new_err(format!(
                "output '{name}' of {rows} rows has shape {shape:?} in {bytes} bytes"
            ))
        })
    }

    /// Bytes of each request's part of BYTES elements; `None` where there are fewer.
    fn string_lengths(&self, mut whole: &[u8], row: usize) -> Option<Vec<usize>> {
        let length = |answering: &Answering| {
            let count = row.checked_mul(usize::try_from(answering.request.rows).ok()?)?;
            let length = strings::prefix(whole, count).ok()?;
            whole = &whole[length..];
            Some(length)
        };
        self.requests.iter().map(length).collect()
    }

    /// Gives each request its part of an output: with `direct`, parts that a DMA engine could put in place are there already.
    fn spread(
        &mut self,
        py: Python<'_>,
        output: usize,
        shape: &[i64],
        whole: Option<Bytes>,
        direct: bool,
    ) -> PyResult<()> {
        let spec = self.intake.spec.clone();
        let lengths = self.part_lengths(output, shape, whole.as_deref())?;
        let dims = client_dims(&spec, output, shape)?;
        let bytes = whole.as_ref().map_or(0, Bytes::len);
        let requests = &mut self.requests;
        let mut copied = 0;
        let hand_out = || {
            let mut at = 0;
            for (Answering { request, outputs, error }, length) in requests.iter_mut().zip(lengths) {
                let (start, wanted) = (at, &request.outputs[output]);
                at += length;
                let part =
                    || whole.as_ref().map_or_else(Bytes::new, |whole| whole.slice(start..start + length));
                let bytes = match wanted {
                    Wanted::No => continue,
                    Wanted::Inline => Some(part()),
                    Wanted::Region(slice) if slice.len() < length => {
                        error.get_or_insert(too_small(&spec, output, slice.len(), length));
                        continue;
                    }
                    Wanted::Region(_) if direct && dma::is_direct(wanted, length) => None,
                    Wanted::Region(slice) => {
                        buffer::copy_to_region(&part(), slice);
                        copied += length as u64;
                        None
                    }
                };
                let shape = request_shape(&spec, request.rows, &dims);
                outputs.push(OutputReply { index: output, dtype: spec.outputs[output].dtype, shape, bytes });
            }
        };
        if bytes < SHORT_COPY {
            hand_out();
        } else {
            py.detach(hand_out);
        }
        self.copied_out += copied;
        Ok(())
    }

    fn finish(&mut self, input_end: u64, infer_end: u64) {
        self.end(None, BatchStamps { taken: self.taken, input_end, infer_end, output_end: now() });
    }

    /// An execution that failed as a whole is all *infer*.
    fn fail_all(&mut self, error: &Error) {
        let (taken, now) = (self.taken, now());
        let stamps = BatchStamps { taken, input_end: taken, infer_end: now, output_end: now };
        self.end(Some(error), stamps);
    }

    fn end(&mut self, failure: Option<&Error>, stamps: BatchStamps) {
        if self.requests.is_empty() {
            return; // settled already
        }
        let requests = std::mem::take(&mut self.requests);
        let outcomes: Vec<_> =
            requests.into_iter().map(|answering| Self::outcome(answering, failure)).collect();
        self.book(&outcomes, &stamps);
        self.intake.release(self.first_ticket);
        for (request, outcome) in outcomes {
            let Request { id, reply, .. } = request;
            let answer = match outcome {
                Ok(outputs) => {
                    let (spec, settled) = (self.intake.spec.clone(), stamps.output_end);
                    Ok(Reply { spec, id, outputs, settled })
                }
                Err(error) => Err(error.of_request(&id)),
            };
            let _ = reply.send(answer); // a client that is gone needs no answer
        }
    }

    fn outcome(answering: Answering, failure: Option<&Error>) -> (Request, Result<Vec<OutputReply>>) {
        let Answering { request, outputs, error } = answering;
        let outcome = match error.or_else(|| failure.cloned()) {
            Some(error) => Err(error),
            None => check_regions(&request).map(|()| outputs),
        };
        (request, outcome)
    }

    fn book(&self, outcomes: &[(Request, Result<Vec<OutputReply>>)], stamps: &BatchStamps) {
        let good = outcomes.iter().filter(|(_, outcome)| outcome.is_ok()).count() as u64;
        let mut statistics = self.intake.statistics.lock();
        statistics.execution(self.rows, good, stamps);
        for (request, outcome) in outcomes {
            if outcome.is_ok() {
                statistics.succeed(request.rows, &request.stamps, stamps);
            } else {
                let ns = stamps.output_end.saturating_sub(request.stamps.received);
                statistics.fail(Failure::Backend, ns);
            }
        }
        statistics.copied_in += self.copied_in;
        statistics.copied_out += self.copied_out;
        for name in &self.fallbacks {
            *statistics.fallbacks.entry(name.clone()).or_default() += 1;
        }
    }
}

/// A region that was truncated meanwhile gave zeros instead of the client's bytes, or lost what was written.
fn check_regions(request: &Request) -> Result<()> {
    let inputs = request.inputs.iter().filter_map(|memory| match memory {
        Memory::Region(slice) => Some(slice),
        Memory::Inline(_) => None,
    });
    let outputs = request.outputs.iter().filter_map(|wanted| match wanted {
        Wanted::Region(slice) => Some(slice),
        Wanted::Inline | Wanted::No => None,
    });
    inputs.chain(outputs).try_for_each(Slice::check_intact)
}

/// Shape of one request's part of an output whose dimensions without the batch dimension are `dims`.
pub(crate) fn request_shape(spec: &Spec, rows: u64, dims: &[i64]) -> Vec<i64> {
    match spec.max_batch {
        0 => dims.to_vec(),
        _ => [&[rows.cast_signed()], dims].concat(),
    }
}

/// Dimensions of an output of this shape as clients have them, without the batch dimension.
fn client_dims(spec: &Spec, output: usize, shape: &[i64]) -> PyResult<Vec<i64>> {
    let tensor = &spec.outputs[output];
    let dims = if spec.max_batch == 0 { shape } else { shape.get(1..).unwrap_or_default() };
    tensor.to_client(dims).ok_or_else(|| {
        PyValueError::new_err(format!(
            "output '{}' has dims {dims:?}, but its reshape says {:?}",
            tensor.name,
            tensor.reshape.as_deref().unwrap_or_default()
        ))
    })
}

/// Whether an output of `nbytes` in its region would lie over an input or another output of its request: engines take for
/// granted that it does not.
fn overlaps(request: &Request, output: usize, slice: &Slice, nbytes: usize) -> bool {
    let touches = |other: &Slice| slice.shares_bytes(nbytes, other);
    let inputs =
        request.inputs.iter().any(|memory| matches!(memory, Memory::Region(other) if touches(other)));
    let is_other_output = |(at, wanted): (usize, &Wanted)| {
        at != output && matches!(wanted, Wanted::Region(other) if touches(other))
    };
    inputs || request.outputs.iter().enumerate().any(is_other_output)
}

pub(crate) fn too_small(spec: &Spec, output: usize, given: usize, needed: usize) -> Error {
    let (name, model) = (&spec.outputs[output].name, &spec.model);
    Error::new(
        Kind::Internal,
        format!(
            "shared memory size specified with the request for output '{name}' of model '{model}' ({given} bytes) should be at least {needed} bytes to hold the results"
        ),
    )
}

#[pymethods]
impl Batch {
    /// Requests in it.
    #[getter]
    fn count(&self) -> usize {
        self.requests.len()
    }

    /// Sum of their batch sizes.
    #[getter]
    fn rows(&self) -> u64 {
        self.rows
    }

    /// The device that all its tensors are in; -1 when there is none.
    #[getter]
    fn home(&self) -> i32 {
        self.key.home
    }

    /// When it left the queue, ns of `now()`.
    #[getter]
    fn taken(&self) -> u64 {
        self.taken
    }

    /// Shape of an input of the whole batch.
    fn shape<'py>(&self, py: Python<'py>, position: usize) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, request_shape(&self.intake.spec, self.rows, &self.dims(position)))
    }

    /// Whether its requests came with this input, which may be optional.
    pub(crate) fn given(&self, position: usize) -> bool {
        !self.intake.spec.inputs[position].optional || self.key_part(position)[0] == 1
    }

    /// Bytes of an input of the whole batch.
    fn nbytes(&self, position: usize) -> usize {
        self.inputs(position).map(Memory::len).sum()
    }

    /// Outputs that some request wants, by position.
    fn wanted(&self) -> Vec<usize> {
        let wants = |&output: &usize| {
            self.requests.iter().any(|answering| !matches!(answering.request.outputs[output], Wanted::No))
        };
        (0..self.intake.spec.outputs.len()).filter(wants).collect()
    }

    /// Address of an input where it lies, when its requests are neighbours in memory and it is aligned to its elements;
    /// `None`: it must be gathered.
    fn view(&mut self, position: usize) -> Option<usize> {
        let mut memories = self.requests.iter().map(|answering| &answering.request.inputs[position]);
        let first = memories.next()?;
        let mut end = first.address() + first.len();
        for memory in memories {
            if memory.address() != end || memory.len() == 0 {
                return None;
            }
            end += memory.len();
        }
        if !first.address().is_multiple_of(self.intake.spec.inputs[position].dtype.size()) {
            self.fallbacks.push("unaligned_input".into());
            return None;
        }
        Some(first.address())
    }

    /// Copies an input of all requests into `buffer`, one after another.
    fn gather(&mut self, py: Python<'_>, position: usize, buffer: &Buffer) -> PyResult<()> {
        let buffer = buffer.inner.as_ref().ok_or_else(given_away)?;
        let bytes = self.nbytes(position);
        if bytes > buffer.len() {
            return Err(PyValueError::new_err(format!(
                "{bytes} bytes do not fit a buffer of {}",
                buffer.len()
            )));
        }
        let requests = &self.requests;
        let copy =
            || buffer::gather(requests.iter().map(|answering| &answering.request.inputs[position]), buffer);
        self.copied_in += if bytes < SHORT_COPY { copy() } else { py.detach(copy) } as u64;
        Ok(())
    }

    /// Address in the client's region where an output of `nbytes` can be computed in place; `None` when the batch has several
    /// requests, the output goes elsewhere, or the region has too few bytes or the wrong alignment.
    fn target(&mut self, output: usize, nbytes: usize) -> Option<usize> {
        let [Answering { request, .. }] = self.requests.as_slice() else { return None };
        let Wanted::Region(slice) = &request.outputs[output] else { return None };
        if overlaps(request, output, slice, nbytes) {
            self.fallbacks.push("overlapping_output".into());
            return None;
        }
        if !slice.address().is_multiple_of(self.intake.spec.outputs[output].dtype.size()) {
            self.fallbacks.push("unaligned_output".into());
            return None;
        }
        (slice.len() >= nbytes).then(|| slice.address())
    }

    /// An output is in the client's region already, where `target` said.
    fn placed(&mut self, output: usize, shape: Vec<i64>) -> PyResult<()> {
        let spec = self.intake.spec.clone();
        let dims = client_dims(&spec, output, &shape)?;
        let dtype = spec.outputs[output].dtype;
        for Answering { request, outputs, .. } in &mut self.requests {
            let shape = request_shape(&spec, request.rows, &dims);
            outputs.push(OutputReply { index: output, dtype, shape, bytes: None });
        }
        Ok(())
    }

    /// Hands an output of the whole batch to its requests: copied into a region, or as a part of the buffer for a reply. The
    /// buffer is given away.
    fn scatter(
        &mut self,
        py: Python<'_>,
        output: usize,
        shape: Vec<i64>,
        buffer: &mut Buffer,
    ) -> PyResult<()> {
        let whole = buffer.inner.take().ok_or_else(given_away)?;
        self.spread(py, output, &shape, Some(whole.freeze()), false)
    }

    /// Answers each request's `output` with its own input `source`: bytes of a message are passed on, those of regions are copied.
    fn forward(&mut self, py: Python<'_>, output: usize, source: usize) -> PyResult<()> {
        let (bytes, spec) = (self.nbytes(source), self.intake.spec.clone());
        let shape = request_shape(&spec, self.rows, &self.dims(source));
        let dims = client_dims(&spec, output, &shape)?;
        let requests = &mut self.requests;
        let mut copied = 0;
        let mut pass = || {
            for Answering { request, outputs, error } in requests.iter_mut() {
                let memory = &request.inputs[source];
                let bytes = match &request.outputs[output] {
                    Wanted::No => continue,
                    Wanted::Inline => match memory.to_reply() {
                        Ok((bytes, did_copy)) => {
                            copied += if did_copy { bytes.len() as u64 } else { 0 };
                            Some(bytes)
                        }
                        Err(failure) => {
                            error.get_or_insert(failure);
                            continue;
                        }
                    },
                    Wanted::Region(slice) if slice.len() < memory.len() => {
                        error.get_or_insert(too_small(&spec, output, slice.len(), memory.len()));
                        continue;
                    }
                    Wanted::Region(slice) => {
                        memory.copy_into(slice);
                        copied += memory.len() as u64;
                        None
                    }
                };
                let shape = request_shape(&spec, request.rows, &dims);
                outputs.push(OutputReply { index: output, dtype: spec.outputs[output].dtype, shape, bytes });
            }
        };
        if bytes < SHORT_COPY {
            pass();
        } else {
            py.detach(pass);
        }
        self.copied_out += copied;
        Ok(())
    }

    /// Bytes of an input that a DMA engine cannot copy from where they are.
    fn pageable_bytes(&self, position: usize) -> usize {
        dma::pageable_bytes(self.inputs(position))
    }

    /// The pieces `(address, bytes)` of an input of the whole batch in order, for a DMA engine; what it cannot reach is copied
    /// into `stage` first, which has `pageable_bytes` bytes.
    #[pyo3(signature = (position, stage))]
    fn sources(
        &mut self,
        py: Python<'_>,
        position: usize,
        stage: Option<&Buffer>,
    ) -> PyResult<Vec<dma::Piece>> {
        let stage = stage.map(|stage| stage.inner.as_ref().ok_or_else(given_away)).transpose()?;
        let needed = self.pageable_bytes(position);
        if needed > stage.map_or(0, buffer::Buffer::len) {
            return Err(PyValueError::new_err(format!("{needed} bytes must be staged")));
        }
        let this = &*self;
        let (pieces, copied) = if needed < SHORT_COPY {
            dma::sources(this.inputs(position), stage)
        } else {
            py.detach(|| dma::sources(this.inputs(position), stage))
        };
        self.copied_in += copied as u64;
        Ok(pieces)
    }

    /// Whether some request's output of `row_bytes` for each row must go through a staging buffer.
    fn needs_stage(&self, output: usize, row_bytes: usize) -> bool {
        let staged = |(wanted, length): (&Wanted, usize)| {
            !matches!(wanted, Wanted::No) && !dma::is_direct(wanted, length)
        };
        self.outputs(output, row_bytes).any(staged)
    }

    /// Where a DMA engine puts the parts of an output: `(offset, address, bytes)`; into `stage`, as large as the output, what it
    /// cannot put where the client wants it.
    #[pyo3(signature = (output, row_bytes, stage))]
    fn targets(
        &self,
        output: usize,
        row_bytes: usize,
        stage: Option<&Buffer>,
    ) -> PyResult<Vec<(usize, usize, usize)>> {
        let stage = stage.map(|stage| stage.inner.as_ref().ok_or_else(given_away)).transpose()?;
        let rows = usize::try_from(self.rows).unwrap_or(usize::MAX);
        if stage.is_some_and(|stage| Some(stage.len()) != row_bytes.checked_mul(rows)) {
            return Err(PyValueError::new_err("the staging buffer is not as large as the output"));
        }
        Ok(dma::targets(self.outputs(output, row_bytes), stage))
    }

    /// Hands an output of a device to its requests: what `targets` put where the client wants it is there, the rest is in
    /// `stage`, which is given away.
    #[pyo3(signature = (output, shape, stage))]
    fn deliver(
        &mut self,
        py: Python<'_>,
        output: usize,
        shape: Vec<i64>,
        stage: Option<&mut Buffer>,
    ) -> PyResult<()> {
        let whole = stage.map(|stage| stage.inner.take().ok_or_else(given_away)).transpose()?;
        self.spread(py, output, &shape, whole.map(buffer::Buffer::freeze), true)
    }

    /// Answers all requests, stages given by their durations in ns: *output* ends now, every wait before is *queue*.
    fn settle_spans(&mut self, py: Python<'_>, input_ns: u64, infer_ns: u64, output_ns: u64) {
        let infer_end = now().saturating_sub(output_ns);
        let input_end = infer_end.saturating_sub(infer_ns);
        self.taken = input_end.saturating_sub(input_ns);
        py.detach(|| self.finish(input_end, infer_end));
    }

    /// Books a fall-back by its name, and the bytes of output that it copied.
    fn fell_back(&mut self, name: String, copied_out: u64) {
        self.fallbacks.push(name);
        self.copied_out += copied_out;
    }

    /// Answers all requests. `input_end` and `infer_end` (ns of `now()`) end those stages; *output* ends now.
    fn settle(&mut self, py: Python<'_>, input_end: u64, infer_end: u64) {
        py.detach(|| self.finish(input_end, infer_end));
    }

    /// Fails all requests with an error of a kind of `error_table()`.
    fn fail(&mut self, py: Python<'_>, kind: &str, message: String) {
        let error = Error::new(Kind::from_name(kind), message);
        py.detach(|| self.fail_all(&error));
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        if !self.requests.is_empty() {
            let model = &self.intake.spec.model;
            let error =
                Error::new(Kind::Internal, format!("an instance of model '{model}' dropped the request"));
            self.fail_all(&error);
        }
    }
}

/// The elements of a BYTES tensor: `str`, or `bytes` where they are no UTF-8.
#[pyfunction]
pub(crate) fn unpack_strings<'py>(py: Python<'py>, tensor: &[u8]) -> PyResult<Bound<'py, PyList>> {
    let list = PyList::empty(py);
    for element in strings::Elements::new(tensor) {
        match str::from_utf8(element) {
            Ok(text) => list.append(PyString::new(py, text))?,
            Err(_) => list.append(PyBytes::new(py, element))?,
        }
    }
    Ok(list)
}

/// A BYTES tensor of elements that are `str` or `bytes`.
///
/// # Errors
/// `TypeError` for other elements; `WireError` when there is no memory for it.
#[pyfunction]
pub(crate) fn pack_strings(elements: &Bound<'_, PyList>) -> PyResult<Buffer> {
    let texts = elements.iter().map(|element| Text::of(&element)).collect::<PyResult<Vec<_>>>()?;
    let texts = texts.iter().map(Text::bytes).collect::<PyResult<Vec<_>>>()?;
    let mut buffer = buffer::Buffer::new(strings::packed_size(texts.iter().map(|text| text.len())))?;
    let mut at = 0;
    for text in texts {
        let length =
            u32::try_from(text.len()).map_err(|_| PyValueError::new_err("an element is over 4 GiB"))?;
        buffer.write(at, &length.to_le_bytes());
        buffer.write(at + 4, text);
        at += 4 + text.len();
    }
    Ok(Buffer { inner: Some(buffer) })
}

/// An element of a list for `pack_strings`.
enum Text<'py> {
    String(Bound<'py, PyString>),
    Bytes(Bound<'py, PyBytes>),
}

impl<'py> Text<'py> {
    fn of(element: &Bound<'py, PyAny>) -> PyResult<Self> {
        if let Ok(text) = element.cast::<PyString>() {
            return Ok(Self::String(text.clone()));
        }
        let bytes = element.cast::<PyBytes>().map_err(|_| {
            PyTypeError::new_err(format!(
                "an element of a BYTES tensor is str or bytes, not {}",
                element.get_type()
            ))
        })?;
        Ok(Self::Bytes(bytes.clone()))
    }

    fn bytes(&self) -> PyResult<&[u8]> {
        match self {
            Self::String(text) => text.to_str().map(str::as_bytes),
            Self::Bytes(bytes) => Ok(bytes.as_bytes()),
        }
    }
}
