//! When things happened: the stamps of a request and the sums that statistics are cut from.
use std::{
    collections::BTreeMap,
    sync::OnceLock,
    time::{Instant, SystemTime, UNIX_EPOCH},
};

/// Monotonic nanoseconds since the process first asked.
pub(crate) fn now() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    u64::try_from(START.get_or_init(Instant::now).elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// The ends of a batch's stages. `taken` ends *queue* and starts *input*.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BatchStamps {
    pub(crate) taken: u64,
    pub(crate) input_end: u64,
    pub(crate) infer_end: u64,
    pub(crate) output_end: u64,
}

/// A count and the nanoseconds it took in sum, as the statistics extension has them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Duration {
    pub(crate) count: u64,
    pub(crate) ns: u64,
}

impl Duration {
    pub(crate) fn add(&mut self, count: u64, ns: u64) {
        self.count += count;
        self.ns += ns;
    }
}

/// What one execution of a given total batch size cost, summed over such executions.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BatchSums {
    pub(crate) input: Duration,
    pub(crate) infer: Duration,
    pub(crate) output: Duration,
}

/// Sums of one model version since it was loaded. One lock covers them, so a snapshot is consistent.
#[derive(Clone, Debug, Default)]
pub(crate) struct Statistics {
    pub(crate) success: Duration,
    pub(crate) fail: Duration,
    /// Requests that left the queue because their client was gone.
    pub(crate) cancelled: u64,
    pub(crate) queue: Duration,
    pub(crate) input: Duration,
    pub(crate) infer: Duration,
    pub(crate) output: Duration,
    pub(crate) inferences: u64,
    pub(crate) executions: u64,
    /// Wall-clock milliseconds of the last execution.
    pub(crate) last_inference: u64,
    pub(crate) batches: BTreeMap<u64, BatchSums>,
    /// Why batches left the queue, by the policy's word for it.
    pub(crate) reasons: BTreeMap<String, u64>,
    /// Bytes that `transfer` moved with the CPU, and the fall-backs that it took, by name.
    pub(crate) copied_in: u64,
    pub(crate) copied_out: u64,
    pub(crate) fallbacks: BTreeMap<String, u64>,
}

impl Statistics {
    /// Books one execution of `rows` rows in which `count` requests succeeded; their own spans come by `succeed`.
    pub(crate) fn execution(&mut self, rows: u64, count: u64, stamps: &BatchStamps) {
        let input = stamps.input_end.saturating_sub(stamps.taken);
        let infer = stamps.infer_end.saturating_sub(stamps.input_end);
        let output = stamps.output_end.saturating_sub(stamps.infer_end);
        self.executions += 1;
        self.last_inference = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX));
        let sums = self.batches.entry(rows).or_default();
        for (sum, batch, ns) in [
            (&mut self.input, &mut sums.input, input),
            (&mut self.infer, &mut sums.infer, infer),
            (&mut self.output, &mut sums.output, output),
        ] {
            sum.add(count, ns * count);
            batch.add(1, ns);
        }
    }

    /// Books one request that succeeded: `started` is when it was accepted, `queued` when it entered the queue.
    pub(crate) fn succeed(&mut self, rows: u64, started: u64, queued: u64, stamps: &BatchStamps) {
        self.inferences += rows;
        self.queue.add(1, stamps.taken.saturating_sub(queued));
        self.success.add(1, stamps.output_end.saturating_sub(started));
    }
}
