//! Back-pressure: a request takes a permit for itself and its bytes, or is refused at once.
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

use crate::error::{Error, Result};

pub(crate) struct Gate {
    requests: AtomicUsize,
    bytes: AtomicUsize,
    max_requests: usize,
    max_bytes: usize,
}

/// Held from decode until the reply is handed to the wire.
pub(crate) struct Permit {
    gate: Arc<Gate>,
    bytes: usize,
}

impl Gate {
    pub(crate) fn new(max_requests: usize, max_bytes: usize) -> Self {
        Self { requests: AtomicUsize::new(0), bytes: AtomicUsize::new(0), max_requests, max_bytes }
    }

    #[cfg(test)]
    pub(crate) fn in_flight(&self) -> usize {
        self.requests.load(Relaxed)
    }

    pub(crate) fn max_bytes(&self) -> usize {
        self.max_bytes
    }

    /// A permit for one request that brings `bytes` of inline tensors.
    ///
    /// # Errors
    /// `Unavailable` ("overloaded") when the requests or the bytes in flight would pass their limit.
    pub(crate) fn enter(self: &Arc<Self>, bytes: usize) -> Result<Permit> {
        let requests = self.requests.fetch_add(1, Relaxed) + 1;
        let held = self.bytes.fetch_add(bytes, Relaxed).saturating_add(bytes);
        let permit = Permit { gate: self.clone(), bytes };
        if requests > self.max_requests {
            let max = self.max_requests;
            return Err(Error::unavailable(format!(
                "server is overloaded: {max} requests are in flight (--max-in-flight-requests)"
            )));
        }
        if held > self.max_bytes {
            let max = self.max_bytes;
            return Err(Error::unavailable(format!(
                "server is overloaded: requests in flight hold over {max} bytes (--max-in-flight-bytes)"
            )));
        }
        Ok(permit)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.gate.requests.fetch_sub(1, Relaxed);
        self.gate.bytes.fetch_sub(self.bytes, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permits_come_back_and_nothing_passes_a_limit() {
        let gate = Arc::new(Gate::new(2, 100));
        let first = gate.enter(60).ok();
        assert!(gate.enter(41).is_err() && gate.enter(usize::MAX).is_err());
        let second = gate.enter(40).ok();
        assert!(gate.enter(0).is_err());
        drop((first, second));
        assert_eq!(gate.in_flight(), 0);
        assert!(gate.enter(101).is_err());
        assert!(gate.enter(100).is_ok());
    }
}
