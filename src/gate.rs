//! Back-pressure: a request takes a permit for itself and its bytes, or is refused at once.
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

use bytes::Bytes;

use crate::error::{Error, Result};

/// Bytes of a request that still counts as small. An eighth of the limit is for such: those who send or ask for much, and those
/// who do not read what they asked for, cannot shut out all others.
const SMALL: usize = 64 << 10;

pub(crate) struct Gate {
    requests: AtomicUsize,
    bytes: AtomicUsize,
    max_requests: usize,
    max_bytes: usize,
}

/// Held from decode until the reply is written. It belongs to the request and to its call, whichever ends later.
pub(crate) struct Permit {
    gate: Arc<Gate>,
    bytes: AtomicUsize,
}

impl Gate {
    pub(crate) fn new(max_requests: usize, max_bytes: usize) -> Self {
        Self { requests: AtomicUsize::new(0), bytes: AtomicUsize::new(0), max_requests, max_bytes }
    }

    /// Requests, or their replies, and bytes that hold permits.
    pub(crate) fn in_flight(&self) -> (usize, usize) {
        (self.requests.load(Relaxed), self.bytes.load(Relaxed))
    }

    /// A permit for one request, which grows with the bytes that come for it.
    ///
    /// # Errors
    /// `Unavailable` ("overloaded") when the requests in flight would pass their limit.
    pub(crate) fn enter(self: &Arc<Self>) -> Result<Arc<Permit>> {
        let requests = self.requests.fetch_add(1, Relaxed) + 1;
        let permit = Arc::new(Permit { gate: self.clone(), bytes: AtomicUsize::new(0) });
        if requests > self.max_requests {
            let max = self.max_requests;
            return Err(Error::unavailable(format!(
                "server is overloaded: {max} requests are in flight (--max-in-flight-requests)"
            )));
        }
        Ok(permit)
    }

    /// Refuses a message that alone would pass the limit, before any of it is waited for.
    ///
    /// # Errors
    /// `Unavailable` ("overloaded").
    pub(crate) fn check_announced(&self, bytes: usize) -> Result<()> {
        if bytes > self.limit(bytes) { Err(self.too_many_bytes()) } else { Ok(()) }
    }

    /// How many bytes may be in flight for one more request of this size.
    fn limit(&self, bytes: usize) -> usize {
        if bytes <= SMALL { self.max_bytes } else { self.max_bytes - self.max_bytes / 8 }
    }

    fn too_many_bytes(&self) -> Error {
        let max = self.max_bytes;
        Error::unavailable(format!(
            "server is overloaded: requests in flight hold over {max} bytes (--max-in-flight-bytes, an eighth of which is for small ones)"
        ))
    }
}

impl Permit {
    /// Books bytes that have come; what is only announced costs nobody anything.
    ///
    /// # Errors
    /// `Unavailable` ("overloaded") when the bytes in flight would pass their limit.
    pub(crate) fn grow(&self, bytes: usize) -> Result<()> {
        let own = self.bytes.fetch_add(bytes, Relaxed) + bytes;
        let held = self.gate.bytes.fetch_add(bytes, Relaxed).saturating_add(bytes);
        if held > self.gate.limit(own) { Err(self.gate.too_many_bytes()) } else { Ok(()) }
    }

    /// Bytes that came are let go of while the request goes on.
    pub(crate) fn shrink(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes, Relaxed);
        self.gate.bytes.fetch_sub(bytes, Relaxed);
    }

    /// The message has been answered: from now on its reply is what is held.
    fn turn_into(&self, reply: usize) -> Result<()> {
        self.shrink(self.bytes.load(Relaxed));
        self.grow(reply)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.gate.requests.fetch_sub(1, Relaxed);
        self.gate.bytes.fetch_sub(self.bytes.load(Relaxed), Relaxed);
    }
}

/// Ties a permit to the last piece of a reply, so that it is given back when the transport has written it.
///
/// # Errors
/// `Unavailable` ("overloaded") when the bytes in flight, replies that clients did not read yet among them, would pass their
/// limit.
pub(crate) fn hold_until_written(permit: Arc<Permit>, pieces: &mut [Bytes]) -> Result<()> {
    permit.turn_into(pieces.iter().map(Bytes::len).sum())?;
    if let Some(last) = pieces.last_mut() {
        *last = Bytes::from_owner(Unwritten { bytes: std::mem::take(last), permit });
    }
    Ok(())
}

struct Unwritten {
    bytes: Bytes,
    #[allow(dead_code)] // held, and dropped
    permit: Arc<Permit>,
}

impl AsRef<[u8]> for Unwritten {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn enter(gate: &Arc<Gate>, bytes: usize) -> Result<Arc<Permit>> {
        let permit = gate.enter()?;
        permit.grow(bytes).map(|()| permit)
    }

    #[test]
    fn permits_come_back_and_nothing_passes_a_limit() {
        let gate = Arc::new(Gate::new(2, 100));
        let first = enter(&gate, 60).ok();
        assert!(enter(&gate, 41).is_err());
        let second = enter(&gate, 40).ok();
        assert!(gate.enter().is_err());
        drop((first, second));
        assert_eq!(gate.in_flight(), (0, 0));
        assert!(enter(&gate, 101).is_err() && gate.check_announced(101).is_err());
        assert!(enter(&gate, 100).is_ok() && gate.check_announced(100).is_ok());
    }

    #[test]
    fn the_last_eighth_is_for_small_requests() {
        let gate = Arc::new(Gate::new(10, 800 << 10));
        let large = enter(&gate, 700 << 10).ok();
        assert!(large.is_some() && enter(&gate, SMALL + 1).is_err());
        let small = enter(&gate, SMALL).ok();
        assert!(small.is_some() && enter(&gate, SMALL).is_err());
    }

    #[test]
    fn a_reply_is_booked_until_its_last_byte_is_dropped() {
        let gate = Arc::new(Gate::new(1, 100));
        let permit = enter(&gate, 60).ok().unwrap();
        let mut pieces = [Bytes::from_static(&[0; 70]), Bytes::from_static(&[0; 30])];
        assert!(hold_until_written(permit, &mut pieces).is_ok());
        let [first, mut last] = pieces;
        drop(first);
        let tail = last.split_off(29);
        drop(last);
        assert_eq!(gate.in_flight(), (1, 100));
        drop(tail);
        assert_eq!(gate.in_flight(), (0, 0));
    }
}
