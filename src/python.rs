//! The wire as Python sees it: start and stop, models, regions, and the calls that control answers.
use std::{sync::Arc, time::Duration};

use flate2::Compression;
use parking_lot::Mutex;
use pyo3::{exceptions::PyValueError, prelude::*};
use tokio::sync::oneshot;

use crate::{
    buffer,
    control::{self, Door, Subject},
    error::{Error, Kind, Result},
    gate::Gate,
    handoff::{Intake, Statistics},
    restricted::Restricted,
    shm, stamps,
    threads::Threads,
    tls, wire,
    wire::{ClientShm, Limits, Listener},
};

/// The `FileDescriptorSet` of `proto/`, serialised.
#[pyfunction]
pub(crate) fn descriptors() -> &'static [u8] {
    include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"))
}

/// Monotonic nanoseconds: the clock of all stamps.
#[pyfunction]
pub(crate) fn now() -> u64 {
    stamps::now()
}

/// The doors and what they share.
#[pyclass(frozen, module = "headrace._wire")]
pub(crate) struct Wire {
    inner: Arc<wire::Wire>,
    threads: Mutex<Option<Threads>>,
}

fn seconds(seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds).map_err(|error| PyValueError::new_err(error.to_string()))
}

type RegionRow = (String, String, usize, usize, usize, Option<i32>, String);

#[pymethods]
impl Wire {
    /// `client_shm` is "true", "local" or "false"; times are seconds; `reply_compression` is a level of 0 (none) to 9;
    /// `threads` 0 chooses by the number of cores.
    #[new]
    #[pyo3(signature = (
        *, client_shm, max_requests, max_bytes, stall_secs, max_http_body = i32::MAX as usize, pause_secs = 30.0, idle_secs = 600.0,
        keepalive_secs = 7200.0, keepalive_timeout_secs = 20.0, reply_compression = 0, threads = 0
    ))]
    #[allow(clippy::too_many_arguments)] // they are options, given by name
    fn new(
        client_shm: &str,
        max_requests: usize,
        max_bytes: usize,
        stall_secs: f64,
        max_http_body: usize,
        pause_secs: f64,
        idle_secs: f64,
        keepalive_secs: f64,
        keepalive_timeout_secs: f64,
        reply_compression: u32,
        threads: usize,
    ) -> PyResult<Self> {
        let client_shm = match client_shm {
            "true" => ClientShm::Always,
            "local" => ClientShm::Local,
            "false" => ClientShm::Never,
            other => {
                return Err(PyValueError::new_err(format!(
                    "client_shm is true, local or false, not {other}"
                )));
            }
        };
        let limits = Limits {
            http_body: max_http_body,
            pause: seconds(pause_secs)?,
            idle: seconds(idle_secs)?,
            keepalive: seconds(keepalive_secs)?,
            keepalive_timeout: seconds(keepalive_timeout_secs)?,
            reply_compression: (reply_compression > 0).then(|| Compression::new(reply_compression.min(9))),
        };
        shm::guard_against_truncation();
        buffer::reuse_freed_memory();
        let threads = Threads::start(threads)?;
        let gate = Gate::new(max_requests, max_bytes);
        let inner = Arc::new(wire::Wire::new(gate, limits, client_shm, seconds(stall_secs)?, threads.bulk()));
        Ok(Self { inner, threads: Mutex::new(Some(threads)) })
    }

    /// Verbs of a door ("grpc" or "http") that need a secret: rows of category, header and value; before the door is opened.
    fn restrict(&self, door: &str, rows: Vec<(String, String, String)>) {
        let place = if door == "grpc" { &self.inner.restricted_grpc } else { &self.inner.restricted_http };
        let _ = place.set(Restricted::new(rows));
    }

    /// Opens a door ("grpc", "http" or "metrics") and returns its port; port 0 takes a free one. An address of `unix:/path`
    /// has none, and 0 is returned. `tls` has the paths of a certificate, its key and of the authorities of clients.
    #[pyo3(signature = (door, address, port, tls=None))]
    fn listen(
        &self,
        door: &str,
        address: &str,
        port: u16,
        tls: Option<(String, String, Option<String>)>,
    ) -> PyResult<u16> {
        let door = match door {
            "grpc" => Door::Grpc,
            "http" => Door::Http,
            "metrics" => Door::Metrics,
            other => {
                return Err(PyValueError::new_err(format!("a door is grpc, http or metrics, not {other}")));
            }
        };
        let tls = tls
            .map(|(certificate, key, authorities)| tls::acceptor(&certificate, &key, authorities.as_deref()))
            .transpose()?;
        let threads = self.threads.lock();
        let threads = threads.as_ref().ok_or_else(|| PyValueError::new_err("the wire is closed"))?;
        let runtime = threads.doors();
        let listener = Listener::bind(runtime, door, address, port)?;
        let port = listener.port();
        runtime.spawn(wire::accept(self.inner.clone(), door, listener, tls));
        Ok(port)
    }

    /// Why the server is not ready; `None` makes it ready.
    #[pyo3(signature = (reason))]
    fn set_unready(&self, reason: Option<String>) {
        self.inner.set_unready(reason);
    }

    /// Why the server is not ready; `None` when it is.
    fn unready(&self) -> Option<String> {
        self.inner.unready()
    }

    /// Requests for this model version go to `intake` from now on.
    fn publish(&self, intake: &Intake) {
        self.inner.ledger.open(intake.inner.clone());
        self.inner.models.publish(intake.inner.clone());
    }

    /// The version is known and can not be asked now.
    fn withdraw(&self, model: &str, version: i64) {
        self.inner.models.withdraw(model, version);
    }

    /// The model is not known any more.
    fn forget(&self, model: &str) {
        self.inner.models.forget(model);
    }

    /// The next control call; `None` after `patience` seconds without one.
    fn pull(&self, py: Python<'_>, patience: f64) -> Option<Call> {
        let patience = Duration::try_from_secs_f64(patience).unwrap_or_default();
        let call = py.detach(|| self.inner.control.pull(patience))?;
        let control::Call { door, verb, subject, payload, local, answer } = call;
        let payload = payload.to_vec();
        Some(Call { door: door.name(), verb, subject, payload, local, answer: Mutex::new(Some(answer)) })
    }

    /// Maps and registers a region of the host; `(address, bytes, to be page-locked)` of the mapping behind it.
    ///
    /// # Errors
    /// `WireError` as `shm::Regions::register` has it.
    fn register_region(
        &self,
        name: &str,
        key: &str,
        offset: u64,
        byte_size: u64,
        local: bool,
    ) -> Result<(usize, usize, bool)> {
        self.check_client(local)?;
        let mapping = self.inner.regions.register(name, key, offset, byte_size)?;
        Ok((mapping.address, mapping.length, mapping.to_be_pinned))
    }

    /// Tells whether the mapping behind a region was page-locked: `None`, or why not.
    #[pyo3(signature = (name, reason))]
    fn set_pinned(&self, name: &str, reason: Option<String>) {
        self.inner.regions.set_pinned(name, reason.map_or(Ok(()), Err));
    }

    /// Registers memory of a device at an address that was opened for it.
    fn register_device_region(
        &self,
        name: &str,
        device: i32,
        address: usize,
        byte_size: usize,
    ) -> Result<()> {
        self.inner.regions.register_device(name, device, address, byte_size)
    }

    /// Refuses a client that may not use shared memory.
    fn check_client(&self, local: bool) -> Result<()> {
        self.inner.client_shm.refuses(local).map_or(Ok(()), Err)
    }

    /// Forgets one region of the host, or of devices; false when there was none of that name.
    fn unregister_region(&self, name: &str, host: bool, local: bool) -> Result<bool> {
        self.check_client(local)?;
        Ok(self.inner.regions.unregister(name, host))
    }

    /// Forgets all regions of the host, or of devices, and tells how many there were.
    fn unregister_all_regions(&self, host: bool, local: bool) -> Result<usize> {
        self.check_client(local)?;
        Ok(self.inner.regions.unregister_all(host))
    }

    /// `(name, key, offset, byte size, leases, device or None, why not page-locked or "")` of one region or of all.
    #[pyo3(signature = (name, host))]
    fn regions(&self, name: Option<&str>, host: bool) -> Result<Vec<RegionRow>> {
        let row = |row: shm::RegionStatus| {
            (row.name, row.key, row.offset, row.length, row.leases, row.device, row.unpinned)
        };
        Ok(self.inner.regions.status(name, host)?.into_iter().map(row).collect())
    }

    /// `(device or None, address, bytes)` of memory that nobody reaches any more and that must be let go of.
    #[staticmethod]
    fn retired() -> Vec<(Option<i32>, usize, usize)> {
        shm::retired()
    }

    /// The retired memory at this address has been let go of.
    #[staticmethod]
    fn bury(address: usize) {
        shm::bury(address);
    }

    /// `(model, version, sums, requests that wait)` of each version that was ever ready, over all its loads; with these quantiles
    /// of the last minute, where they are kept.
    #[pyo3(signature = (quantiles = vec![]))]
    #[allow(clippy::needless_pass_by_value)] // PyO3 hands a list over as a value
    fn ledger(&self, quantiles: Vec<f64>) -> Vec<(String, i64, Statistics, usize)> {
        let row = |(model, version, sums, waiting): (String, i64, stamps::Statistics, usize)| {
            (model, version, Statistics::of(sums, &quantiles), waiting)
        };
        self.inner.ledger.read().into_iter().map(row).collect()
    }

    /// Quantiles are kept of the versions that are published from now on.
    fn keep_quantiles(&self) {
        self.inner.ledger.keep_quantiles();
    }

    /// `(door, kind, count)` of requests that were refused before they waited for a model.
    fn refusals(&self) -> Vec<(&'static str, &'static str, u64)> {
        self.inner.refusals.read()
    }

    /// Requests and bytes that hold permits.
    fn in_flight(&self) -> (usize, usize) {
        self.inner.gate.in_flight()
    }

    /// Bytes of page-locked buffers, and of those in use.
    #[staticmethod]
    fn pinned_bytes() -> (usize, usize) {
        buffer::pinned_bytes()
    }

    /// Connections that are open.
    fn connections(&self) -> u64 {
        self.inner.connections()
    }

    /// Ready turns false and new requests are refused; those in flight go on.
    fn begin_stop(&self) {
        self.inner.begin_stop();
    }

    /// Asks clients to leave; connections close when their calls are answered.
    fn say_goodbye(&self) {
        self.inner.say_goodbye();
    }

    /// Ends the threads of the doors.
    fn close(&self, py: Python<'_>) {
        self.inner.control.close();
        if let Some(threads) = self.threads.lock().take() {
            py.detach(|| threads.stop());
        }
    }
}

/// A control call that waits for its answer; dropped without one, the client gets an error.
#[pyclass(frozen, module = "headrace._wire")]
pub(crate) struct Call {
    #[pyo3(get)]
    door: &'static str,
    #[pyo3(get)]
    verb: &'static str,
    subject: Subject,
    payload: Vec<u8>,
    #[pyo3(get)]
    local: bool,
    answer: Mutex<Option<oneshot::Sender<Result<bytes::Bytes>>>>,
}

#[pymethods]
impl Call {
    /// Model of the HTTP path, or empty.
    #[getter]
    fn model(&self) -> &str {
        &self.subject.model
    }

    /// Version of the HTTP path, or empty.
    #[getter]
    fn version(&self) -> &str {
        &self.subject.version
    }

    /// Region of the HTTP path, or empty.
    #[getter]
    fn region(&self) -> &str {
        &self.subject.region
    }

    /// The message or the JSON body.
    #[getter]
    fn payload(&self) -> &[u8] {
        &self.payload
    }

    /// Sends the response message, JSON or text.
    fn answer(&self, body: Vec<u8>) {
        self.send(Ok(body.into()));
    }

    /// Sends an error of a kind of `error_table()`.
    fn fail(&self, kind: &str, message: String) {
        self.send(Err(Error::new(Kind::from_name(kind), message)));
    }
}

impl Call {
    fn send(&self, outcome: Result<bytes::Bytes>) {
        if let Some(answer) = self.answer.lock().take() {
            let _ = answer.send(outcome);
        }
    }
}
