//! A batch that a child process executes: its requests go there one by one, not concatenated, as views on where they lie.
#![allow(clippy::needless_pass_by_value)] // PyO3 hands arguments over as values
use std::{os::unix::net::UnixStream, time::Duration};

use parking_lot::Mutex;
use pyo3::{exceptions::PyValueError, prelude::*};

use crate::{
    buffer::Memory,
    child::{self, Answer, Broken, Child, EXECUTE, Output, Question},
    dtype::Dtype,
    error::{Error, Kind},
    handoff::{Answering, Batch, request_shape, too_small},
    pending::{OutputReply, Spec, Wanted},
    shape::elements,
    stamps::now,
    strings,
};

/// The connection to the process of one instance.
#[pyclass(frozen, module = "headrace._wire")]
pub(crate) struct Process {
    child: Mutex<Child>,
    /// The other end, for the process to inherit; taken once.
    other: Mutex<Option<UnixStream>>,
}

#[pymethods]
impl Process {
    /// `patience` is how many seconds the process may take for a batch.
    #[new]
    fn new(patience: f64) -> PyResult<Self> {
        let patience =
            Duration::try_from_secs_f64(patience).ok().filter(|patience| !patience.is_zero()).ok_or_else(
                || PyValueError::new_err(format!("patience must be over 0 seconds, not {patience}")),
            )?;
        let (ours, theirs) = UnixStream::pair()?;
        Ok(Self { child: Mutex::new(Child::new(ours, patience)?), other: Mutex::new(Some(theirs)) })
    }

    /// Descriptor of the other end. It is closed here by `started`.
    #[getter]
    fn descriptor(&self) -> PyResult<i32> {
        use std::os::fd::AsRawFd;
        let other = self.other.lock();
        other
            .as_ref()
            .map(UnixStream::as_raw_fd)
            .ok_or_else(|| PyValueError::new_err("the process has started"))
    }

    /// The process has inherited its end, so that its death ends the connection.
    fn started(&self) {
        self.other.lock().take();
    }

    /// Ends the connection, so that the process finishes.
    fn close(&self, py: Python<'_>) {
        py.detach(|| self.child.lock().close());
    }

    /// Executes a batch and has its answers ready to be settled; `(input_end, infer_end)`, ns of `now()`.
    ///
    /// # Errors
    /// `ValueError` saying what the process did ("ended", "did not answer within 3 s"); it cannot be used any more.
    fn execute(&self, py: Python<'_>, mut batch: PyRefMut<'_, Batch>) -> PyResult<(u64, u64)> {
        let batch = &mut *batch;
        py.detach(|| run(&mut self.child.lock(), batch)).map_err(PyValueError::new_err)
    }
}

fn run(child: &mut Child, batch: &mut Batch) -> Result<(u64, u64), Broken> {
    let copied = tell(child, batch)?;
    batch.copied_in += copied as u64;
    let input_end = now();
    let answers = loop {
        match child.receive(batch.requests.len())? {
            Question::Answers(answers) => break answers,
            Question::IsCancelled(at) => child.tell(batch.requests[at].request.reply.is_closed())?,
        }
    };
    let infer_end = now();
    let spec = batch.intake.spec.clone();
    for (answering, answer) in batch.requests.iter_mut().zip(answers) {
        if let Err(error) = take(&spec, answering, answer) {
            answering.error = Some(error);
        }
    }
    Ok((input_end, infer_end))
}

/// Sends the batch; returns the bytes that were copied for it.
fn tell(child: &mut Child, batch: &Batch) -> Result<usize, Broken> {
    let spec = batch.intake.spec.clone();
    let given: Vec<usize> = (0..spec.inputs.len()).filter(|&input| batch.given(input)).collect();
    let dims: Vec<Vec<i64>> = given.iter().map(|&input| batch.dims(input)).collect();
    let mut message = child.begin();
    let outputs = message.outputs(batch.requests.iter().map(|answering| expected(&spec, answering)).sum())?;
    let needed = child::space(batch.requests.iter().flat_map(|answering| &answering.request.inputs));
    let shared = if needed > 0 { Some(message.inputs(needed)?) } else { None };
    message.number(outputs);
    message.count(batch.requests.len())?;
    let (mut at, mut copied) = (0, 0);
    for Answering { request, .. } in &batch.requests {
        message.text(request.id.as_bytes())?;
        message.text(request.parameters.as_bytes())?;
        message.count(given.len())?;
        for (&input, dims) in given.iter().zip(&dims) {
            let memory = &request.inputs[input];
            let (object, offset) = match memory {
                Memory::Region(slice) => {
                    let (object, offset) = slice.object().ok_or_else(|| {
                        format!("cannot be given input '{}' in memory of a GPU", spec.inputs[input].name)
                    })?;
                    (message.object(object), offset)
                }
                Memory::Inline(bytes) => match &shared {
                    Some((number, block)) => {
                        block.write(at, memory);
                        let start = at;
                        at = child::aligned(at + bytes.len());
                        copied += bytes.len();
                        (*number, start)
                    }
                    None => (outputs, 0), // no input has bytes
                },
            };
            message.count(input)?;
            message.number(object);
            message.number(offset as u64);
            message.number(memory.len() as u64);
            message.dimensions(&request_shape(&spec, request.rows, dims))?;
        }
        let wanted = request.outputs.iter().enumerate().filter(|(_, wanted)| !matches!(wanted, Wanted::No));
        message.count(wanted.clone().count())?;
        for (output, wanted) in wanted {
            message.count(output)?;
            let (object, offset, length) = match wanted {
                Wanted::Region(slice) => {
                    let (object, offset) = slice.object().ok_or_else(|| {
                        format!("cannot put output '{}' in memory of a GPU", spec.outputs[output].name)
                    })?;
                    (message.object(object), offset, slice.len())
                }
                Wanted::Inline | Wanted::No => (0, 0, 0),
            };
            message.number(object);
            message.number(offset as u64);
            message.number(length as u64);
        }
    }
    message.send(EXECUTE)?;
    Ok(copied)
}

/// Bytes of a request's outputs in the reply, as far as the model says.
fn expected(spec: &Spec, answering: &Answering) -> usize {
    let request = &answering.request;
    let bytes = |(tensor, wanted): (&crate::pending::TensorSpec, &Wanted)| match wanted {
        Wanted::Inline if tensor.dtype != Dtype::Bytes => {
            let rows = usize::try_from(request.rows).unwrap_or(1);
            tensor.dtype.bytes(&tensor.dims).and_then(|row| row.checked_mul(rows)).map_or(0, child::aligned)
        }
        _ => 0,
    };
    spec.outputs.iter().zip(&request.outputs).map(bytes).fold(0, usize::saturating_add)
}

fn take(spec: &Spec, answering: &mut Answering, answer: Answer) -> Result<(), Error> {
    for output in answer? {
        let reply = check(spec, answering, output)?;
        answering.outputs.push(reply);
    }
    Ok(())
}

/// An output that fits what the model and the request say of it.
fn check(spec: &Spec, answering: &Answering, output: Output) -> Result<OutputReply, Error> {
    let Output { position, dtype, bytes, length, shape } = output;
    let model = &spec.model;
    let wrong = |what: String| Error::new(Kind::Internal, format!("model '{model}' answered with {what}"));
    let (Some(tensor), Some(wanted)) = (spec.outputs.get(position), answering.request.outputs.get(position))
    else {
        return Err(wrong(format!("an output number {position}, which it does not have")));
    };
    let name = &tensor.name;
    if answering.outputs.iter().any(|other| other.index == position) {
        return Err(wrong(format!("output '{name}' twice")));
    }
    if dtype != tensor.dtype.name() {
        let expected = tensor.dtype.name();
        return Err(wrong(format!("output '{name}' of type {dtype}, but its config says {expected}")));
    }
    let fits = match (tensor.dtype, &bytes) {
        (Dtype::Bytes, Some(bytes)) => {
            elements(&shape).and_then(|count| strings::prefix(bytes, count).ok()) == Some(length)
        }
        (Dtype::Bytes, None) => true, // the client reads what the client's region has
        (dtype, _) => dtype.bytes(&shape) == Some(length),
    };
    if !fits {
        return Err(wrong(format!("output '{name}' of shape {shape:?} in {length} bytes")));
    }
    match wanted {
        Wanted::Region(slice) if slice.len() < length => Err(too_small(spec, position, slice.len(), length)),
        Wanted::Region(_) if bytes.is_none() => Ok(()),
        Wanted::Inline if bytes.is_some() => Ok(()),
        _ => Err(wrong(format!("output '{name}', which is not where it was wanted"))),
    }?;
    let shape = to_client(spec, position, shape);
    Ok(OutputReply { index: position, dtype: tensor.dtype, shape, bytes })
}

/// The shape as clients have it, where the config reshapes.
fn to_client(spec: &Spec, position: usize, shape: Vec<i64>) -> Vec<i64> {
    let batch = usize::from(spec.max_batch > 0);
    match shape.get(batch..).and_then(|dims| spec.outputs[position].to_client(dims)) {
        Some(dims) => [&shape[..batch], &dims].concat(),
        None => shape,
    }
}
