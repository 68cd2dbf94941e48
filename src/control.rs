//! Everything that is not an inference: the doors queue such calls, Python pulls and answers them.
use std::{
    collections::VecDeque,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use tokio::sync::oneshot;

use crate::{
    error::{Error, Result},
    stamps::now,
};

/// The control loop counts as stuck when it has not pulled for this long.
const STUCK_NS: u64 = 5_000_000_000;
/// Bytes of a control call; Python parses it, and others wait meanwhile.
pub(crate) const MAX_CONTROL_BODY: usize = 1 << 20;
/// Calls that may wait for the control loop.
const MAX_WAITING: usize = 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Door {
    Grpc,
    Http,
    Metrics,
}

impl Door {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Grpc => "grpc",
            Self::Http => "http",
            Self::Metrics => "metrics",
        }
    }
}

/// The subject of a call as its HTTP path has it; gRPC has the same in its message.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Subject {
    pub(crate) model: String,
    pub(crate) version: String,
    pub(crate) region: String,
}

pub(crate) struct Call {
    pub(crate) door: Door,
    /// The RPC's name, for both doors.
    pub(crate) verb: &'static str,
    pub(crate) subject: Subject,
    /// The message, or the JSON body.
    pub(crate) payload: Bytes,
    /// The client is on this host.
    pub(crate) local: bool,
    pub(crate) answer: oneshot::Sender<Result<Bytes>>,
}

#[derive(Default)]
pub(crate) struct Control {
    calls: Mutex<(VecDeque<Call>, bool)>,
    bell: Condvar,
    last_pull: AtomicU64,
}

impl Control {
    /// # Errors
    /// `Unavailable` when too many calls wait already or the server ends.
    pub(crate) fn push(&self, call: Call) -> Result<()> {
        let mut calls = self.calls.lock();
        if calls.1 {
            return Err(Error::unavailable("Server is stopping"));
        }
        if calls.0.len() >= MAX_WAITING {
            return Err(Error::unavailable(format!(
                "server is overloaded: {MAX_WAITING} control calls are waiting"
            )));
        }
        calls.0.push_back(call);
        self.bell.notify_one();
        Ok(())
    }

    /// The next call; `None` after `patience` without one, or at the end.
    pub(crate) fn pull(&self, patience: Duration) -> Option<Call> {
        self.last_pull.store(now(), Relaxed);
        let mut calls = self.calls.lock();
        if calls.0.is_empty() && !calls.1 {
            self.bell.wait_for(&mut calls, patience);
        }
        self.last_pull.store(now(), Relaxed);
        calls.0.pop_front()
    }

    pub(crate) fn stuck(&self) -> bool {
        now().saturating_sub(self.last_pull.load(Relaxed)) > STUCK_NS
    }

    /// Calls that wait or come later are refused.
    pub(crate) fn close(&self) {
        let mut calls = self.calls.lock();
        calls.1 = true;
        calls.0.clear();
        self.bell.notify_all();
    }
}
