//! The requests of one model version that wait for an instance, in one lane for each shape.
//!
//! Doors push and ring; instance threads wait for what the policy asked for and take what it decides. A request leaves its
//! lane when it is taken, when its client is gone, or when the intake closes.
use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use parking_lot::{Condvar, Mutex, MutexGuard};
use tokio::sync::oneshot;

use crate::{
    buffer::Memory,
    dtype::Dtype,
    error::{Error, Result},
    gate::Permit,
    histogram::SharedHistogram,
    shape::{fits, reshaped},
    shm::Slice,
    stamps::{Failure, RequestStamps, Statistics, now},
};

/// Empty lanes that are kept for the next request of their shape.
const IDLE_LANES: usize = 16;

pub(crate) struct TensorSpec {
    pub(crate) name: String,
    pub(crate) dtype: Dtype,
    /// Without the batch dimension; -1 where any extent is accepted.
    pub(crate) dims: Vec<i64>,
    /// Dims as the backend has them, where they are others.
    pub(crate) reshape: Option<Vec<i64>>,
    /// A request may come without this input.
    pub(crate) optional: bool,
    /// Names of the elements of this output, for classification; an empty name is none.
    pub(crate) labels: Vec<String>,
}

impl TensorSpec {
    #[cfg(test)]
    pub(crate) fn new(name: String, dtype: Dtype, dims: Vec<i64>) -> Self {
        Self { name, dtype, dims, reshape: None, optional: false, labels: vec![] }
    }

    /// Dimensions that fit `dims`, as the backend has them.
    pub(crate) fn to_backend(&self, dims: &[i64]) -> Vec<i64> {
        self.reshape.as_ref().map_or_else(|| dims.to_vec(), |reshape| reshaped(dims, &self.dims, reshape))
    }

    /// The backend's dimensions as clients have them; `None` where they are not what `reshape` promised.
    pub(crate) fn to_client(&self, dims: &[i64]) -> Option<Vec<i64>> {
        match &self.reshape {
            None => Some(dims.to_vec()),
            Some(reshape) => fits(dims, reshape).then(|| reshaped(dims, reshape, &self.dims)),
        }
    }

    /// Numbers that this input has in a `LaneKey`.
    pub(crate) fn key_length(&self) -> usize {
        self.dims.len() + usize::from(self.optional)
    }
}

/// What a loaded model version accepts and answers.
pub(crate) struct Spec {
    pub(crate) model: String,
    pub(crate) version: i64,
    /// 0: requests are not batched and shapes are whole.
    pub(crate) max_batch: i64,
    pub(crate) inputs: Vec<TensorSpec>,
    pub(crate) outputs: Vec<TensorSpec>,
    /// It is executed by instances on devices, which reach memory of devices.
    pub(crate) on_device: bool,
    /// Elements of BYTES inputs must be UTF-8.
    pub(crate) text_only: bool,
}

/// Where one output of a request goes.
pub(crate) enum Wanted {
    No,
    Inline,
    Region(Slice),
}

pub(crate) struct OutputReply {
    /// Position in the model's outputs.
    pub(crate) index: usize,
    pub(crate) dtype: Dtype,
    pub(crate) shape: Vec<i64>,
    /// `None`: the bytes are in the client's region.
    pub(crate) bytes: Option<Bytes>,
}

pub(crate) struct Reply {
    pub(crate) spec: Arc<Spec>,
    pub(crate) id: String,
    pub(crate) outputs: Vec<OutputReply>,
    /// When its batch was settled, which starts *encode*.
    pub(crate) settled: u64,
}

/// An admitted request, frozen but for where it waits.
pub(crate) struct Request {
    /// Set by `push`; grows with every request, so lanes are sorted by it.
    pub(crate) ticket: u64,
    pub(crate) id: String,
    /// A JSON object, or empty.
    pub(crate) parameters: String,
    pub(crate) rows: u64,
    /// One for each input of the model, in its order; no bytes for one that is missing.
    pub(crate) inputs: Vec<Memory>,
    /// One for each output of the model, in its order.
    pub(crate) outputs: Vec<Wanted>,
    pub(crate) stamps: RequestStamps,
    pub(crate) reply: oneshot::Sender<Result<Reply>>,
    /// Given back with the request.
    #[allow(dead_code)]
    pub(crate) permit: Arc<Permit>,
}

/// What requests must have in common to share a batch.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct LaneKey {
    /// Their input shapes, one after another and without batch dimensions. In front of an optional one is 1; where it is
    /// missing 0, and zeros for its dimensions.
    pub(crate) shapes: Box<[i64]>,
    /// The device that their tensors are in; `HOST` for all others.
    pub(crate) home: i32,
}

/// No device: tensors in host memory, or in several devices'.
pub(crate) const HOST: i32 = -1;

struct Lane {
    key: LaneKey,
    requests: VecDeque<Request>,
    rows: u64,
}

/// What the policy sees of a lane.
pub(crate) struct LaneView {
    pub(crate) lane: u64,
    pub(crate) home: i32,
    pub(crate) oldest: u64,
    /// Rows of the waiting requests, oldest first, until they pass the limit of one batch.
    pub(crate) rows: Vec<u64>,
}

/// Rows that a lane must reach to be worth a decision, by lane; any other lane is worth one as soon as it has a row.
pub(crate) type Thresholds = Vec<(u64, u64)>;

/// What an instance thread waits for.
pub(crate) struct Patience {
    pub(crate) thresholds: Thresholds,
    /// Ns of `now()`.
    pub(crate) until: Option<u64>,
    /// The device it is on, or `HOST`, and how many nudges of it the thread knows of.
    pub(crate) device: i32,
    pub(crate) nudges: Option<u64>,
}

/// An instance thread that sleeps until a lane reaches its threshold.
struct Sleeper {
    thresholds: Thresholds,
    device: i32,
    bell: Condvar,
}

#[derive(Default)]
struct Lanes {
    by_key: HashMap<LaneKey, u64>,
    by_number: BTreeMap<u64, Lane>,
    next_lane: u64,
    next_ticket: u64,
    sleepers: VecDeque<Arc<Sleeper>>,
    /// By device; grows with every nudge.
    nudges: HashMap<i32, u64>,
    phase: Phase,
}

#[derive(Clone, Copy, Default, PartialEq)]
enum Phase {
    #[default]
    Open,
    /// What waits is still served, and nothing waits for company.
    Draining,
    Closed,
}

/// A snapshot for the policy; `None` from `wait` means the intake is closed.
pub(crate) struct Pending {
    pub(crate) now: u64,
    pub(crate) draining: bool,
    /// Nudges so far: a `wait` that is given this number returns at once when there was another since.
    pub(crate) nudges: u64,
    pub(crate) lanes: Vec<LaneView>,
}

impl Lanes {
    fn push(&mut self, key: LaneKey, mut request: Request) -> u64 {
        request.ticket = self.next_ticket;
        self.next_ticket += 1;
        let ticket = request.ticket;
        let number = *self.by_key.entry(key).or_insert_with_key(|key| {
            let lane = Lane { key: key.clone(), requests: VecDeque::new(), rows: 0 };
            self.by_number.insert(self.next_lane, lane);
            self.next_lane += 1;
            self.next_lane - 1
        });
        if let Some(lane) = self.by_number.get_mut(&number) {
            lane.rows += request.rows;
            lane.requests.push_back(request);
        }
        ticket
    }

    fn reaches(&self, thresholds: &Thresholds) -> bool {
        self.by_number.iter().any(|(number, lane)| {
            let own = thresholds.iter().find(|(other, _)| other == number);
            lane.rows >= own.map_or(1, |&(_, rows)| rows)
        })
    }

    fn is_empty(&self) -> bool {
        self.by_number.values().all(|lane| lane.requests.is_empty())
    }

    /// The `count` oldest requests of a lane, and its key; `None` when there are fewer, or they have more rows than `limit`.
    fn take(&mut self, number: u64, count: usize, limit: u64) -> Option<(LaneKey, Vec<Request>)> {
        let lane = self.by_number.get_mut(&number).filter(|lane| lane.requests.len() >= count)?;
        if lane.requests.iter().take(count).map(|request| request.rows).sum::<u64>() > limit {
            return None;
        }
        let requests: Vec<_> = lane.requests.drain(..count).collect();
        lane.rows -= requests.iter().map(|request| request.rows).sum::<u64>();
        let key = lane.key.clone();
        self.forget_if_idle(number);
        Some((key, requests))
    }

    fn remove(&mut self, ticket: u64) -> Option<Request> {
        let (number, request) = self.by_number.iter_mut().find_map(|(&number, lane)| {
            let at = lane.requests.binary_search_by_key(&ticket, |request| request.ticket).ok()?;
            let request = lane.requests.remove(at)?;
            lane.rows -= request.rows;
            Some((number, request))
        })?;
        self.forget_if_idle(number);
        Some(request)
    }

    fn forget_if_idle(&mut self, number: u64) {
        if self.by_number.len() > IDLE_LANES
            && self.by_number.get(&number).is_some_and(|lane| lane.requests.is_empty())
            && let Some(lane) = self.by_number.remove(&number)
        {
            self.by_key.remove(&lane.key);
        }
    }

    fn view(&self, limit: u64) -> Vec<LaneView> {
        let view = |(&lane, waiting): (&u64, &Lane)| {
            let oldest = waiting.requests.front()?.stamps.queued;
            let mut sum = 0;
            let fits = |request: &&Request| {
                let fits = sum <= limit;
                sum += request.rows;
                fits
            };
            let rows = waiting.requests.iter().take_while(fits).map(|request| request.rows).collect();
            Some(LaneView { lane, home: waiting.key.home, oldest, rows })
        };
        self.by_number.iter().filter_map(view).collect()
    }

    /// Wakes the first sleeper that has what it sleeps for; it rings on after it took its part.
    fn ring(&mut self) {
        if let Some(at) = self.sleepers.iter().position(|sleeper| self.reaches(&sleeper.thresholds))
            && let Some(sleeper) = self.sleepers.remove(at)
        {
            sleeper.bell.notify_one();
        }
    }

    fn wake_all(&mut self) {
        self.sleepers.drain(..).for_each(|sleeper| {
            sleeper.bell.notify_one();
        });
    }

    fn wake_device(&mut self, device: i32) {
        self.sleepers.retain(|sleeper| {
            let stays = sleeper.device != device;
            if !stays {
                sleeper.bell.notify_one();
            }
            stays
        });
    }
}

/// The requests that wait for one model version, and its statistics.
pub(crate) struct Intake {
    pub(crate) spec: Arc<Spec>,
    pub(crate) statistics: Mutex<Statistics>,
    /// Times of stage *encode*, which ends after the request is booked.
    encode: SharedHistogram,
    lanes: Mutex<Lanes>,
    /// When each batch that an instance still holds was taken.
    held: Mutex<Vec<(u64, u64)>>,
    /// Instances that cannot serve just now, and why.
    ailing: Mutex<BTreeMap<String, String>>,
}

impl Intake {
    pub(crate) fn new(spec: Spec) -> Self {
        Self {
            spec: Arc::new(spec),
            statistics: Mutex::default(),
            encode: SharedHistogram::default(),
            lanes: Mutex::default(),
            held: Mutex::default(),
            ailing: Mutex::default(),
        }
    }

    /// Adds a request without waking anyone (`ring` does) and returns its ticket.
    ///
    /// # Errors
    /// `Unavailable` when the intake is closed.
    pub(crate) fn push(&self, key: LaneKey, request: Request) -> Result<u64> {
        let mut lanes = self.lanes.lock();
        if lanes.phase == Phase::Closed {
            let Spec { model, version, .. } = &*self.spec;
            return Err(Error::unavailable(format!(
                "Request for unknown model: '{model}' version {version} is not at ready state"
            )));
        }
        Ok(lanes.push(key, request))
    }

    /// Wakes an instance thread that waits for as many rows as there are now.
    pub(crate) fn ring(&self) {
        self.lanes.lock().ring();
    }

    /// Takes back a request that still waits: its client does not want it any more.
    pub(crate) fn cancel(&self, ticket: u64) {
        let removed = self.lanes.lock().remove(ticket);
        if let Some(request) = removed {
            self.statistics.lock().fail(Failure::Cancelled, now().saturating_sub(request.stamps.received));
        }
    }

    /// A reply of this model was encoded, which it has been waiting for since `settled`.
    pub(crate) fn encoded(&self, settled: u64) {
        self.encode.add(now().saturating_sub(settled));
    }

    /// All sums of one moment, but for those of *encode*.
    pub(crate) fn snapshot(&self) -> Statistics {
        let mut sums = self.statistics.lock().clone();
        sums.stages.encode = self.encode.read();
        sums
    }

    /// Requests that wait now.
    pub(crate) fn waiting(&self) -> usize {
        self.lanes.lock().by_number.values().map(|lane| lane.requests.len()).sum()
    }

    /// Sleeps until some lane reaches its threshold, or it is time, or there were nudges that the thread does not know of, or
    /// nothing more will come; then tells what waits.
    pub(crate) fn wait(&self, patience: &Patience, limit: u64) -> Option<Pending> {
        let Patience { thresholds, until, device, .. } = patience;
        let mut lanes = self.lanes.lock();
        loop {
            let now = now();
            if lanes.phase == Phase::Closed {
                return None;
            }
            let draining = lanes.phase == Phase::Draining;
            let nudges = lanes.nudges.get(device).copied().unwrap_or(0);
            let called = patience.nudges.is_some_and(|seen| seen != nudges);
            let over = until.is_some_and(|until| until <= now) || (draining && !lanes.is_empty());
            if called || over || lanes.reaches(thresholds) {
                return Some(Pending { now, draining, nudges, lanes: lanes.view(limit) });
            }
            sleep(&mut lanes, patience, until.map(|until| until - now));
        }
    }

    /// Has the sleepers on a device look again: something that their policy knows of has changed.
    pub(crate) fn nudge(&self, device: i32) {
        let mut lanes = self.lanes.lock();
        *lanes.nudges.entry(device).or_default() += 1;
        lanes.wake_device(device);
    }

    /// The `count` oldest requests of `lane`. `None` when there are fewer, or they are no batch of this model, because another
    /// thread was faster or clients went: the caller decided on what is no more, and must look again.
    pub(crate) fn take(&self, lane: u64, count: usize) -> Option<(LaneKey, Vec<Request>)> {
        let mut lanes = self.lanes.lock();
        let (key, requests) = lanes.take(lane, count, self.spec.max_batch.max(1).unsigned_abs())?;
        lanes.ring();
        drop(lanes);
        if let Some(first) = requests.first() {
            self.held.lock().push((first.ticket, now()));
        }
        Some((key, requests))
    }

    /// An instance is done with the batch whose first request has this ticket.
    pub(crate) fn release(&self, ticket: u64) {
        let mut held = self.held.lock();
        if let Some(at) = held.iter().position(|&(first, _)| first == ticket) {
            held.swap_remove(at);
        }
    }

    /// An instance cannot serve just now, or can again.
    pub(crate) fn set_ailing(&self, instance: String, why: Option<String>) {
        let mut ailing = self.ailing.lock();
        match why {
            Some(why) => drop(ailing.insert(instance, why)),
            None => drop(ailing.remove(&instance)),
        }
    }

    /// An instance that cannot serve, and why.
    pub(crate) fn ailing(&self) -> Option<(String, String)> {
        self.ailing.lock().iter().next().map(|(instance, why)| (instance.clone(), why.clone()))
    }

    /// Batches that instances hold now, and when the oldest of them was taken.
    pub(crate) fn held(&self) -> (usize, Option<u64>) {
        let held = self.held.lock();
        (held.len(), held.iter().map(|&(_, since)| since).min())
    }

    /// What waits is served at once from now on.
    pub(crate) fn drain(&self) {
        let mut lanes = self.lanes.lock();
        if lanes.phase == Phase::Open {
            lanes.phase = Phase::Draining;
        }
        lanes.wake_all();
    }

    /// Ends the intake: threads that wait get `None`, requests that wait get an error that says what became of the model.
    pub(crate) fn close(&self, why: &str) {
        let left: Vec<Lane> = {
            let mut lanes = self.lanes.lock();
            lanes.phase = Phase::Closed;
            lanes.wake_all();
            lanes.by_key.clear();
            std::mem::take(&mut lanes.by_number).into_values().collect()
        };
        let model = &self.spec.model;
        for request in left.into_iter().flat_map(|lane| lane.requests) {
            let error = Error::unavailable(format!("model '{model}' {why} before the request was executed"));
            self.statistics.lock().fail(Failure::Other, now().saturating_sub(request.stamps.received));
            let _ = request.reply.send(Err(error.of_request(&request.id)));
        }
    }
}

fn sleep(lanes: &mut MutexGuard<'_, Lanes>, patience: &Patience, nanoseconds: Option<u64>) {
    let Patience { thresholds, device, .. } = patience;
    let sleeper = Arc::new(Sleeper { thresholds: thresholds.clone(), device: *device, bell: Condvar::new() });
    lanes.sleepers.push_back(sleeper.clone());
    match nanoseconds {
        Some(nanoseconds) => {
            sleeper.bell.wait_for(lanes, Duration::from_nanos(nanoseconds));
        }
        None => sleeper.bell.wait(lanes),
    }
    lanes.sleepers.retain(|other| !Arc::ptr_eq(other, &sleeper));
}
