//! When things happened: the stamps of a request and the sums that statistics are cut from.
use std::{
    collections::BTreeMap,
    sync::OnceLock,
    time::{Instant, SystemTime, UNIX_EPOCH},
};

use crate::{histogram::Histogram, quantiles::Quantiles};

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

/// Why a request failed, as Triton's metrics have it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Failure {
    /// In an instance.
    Backend,
    /// Its client was gone while it waited.
    Cancelled,
    /// By the queue's own rules.
    #[allow(dead_code)] // there are none yet
    Rejected,
    Other,
}

impl Failure {
    pub(crate) const NAMES: [&str; 4] = ["BACKEND", "CANCELED", "REJECTED", "OTHER"];
}

/// Times of single requests; of a batch's stages each of its requests counts the whole.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stages {
    pub(crate) decode: Histogram,
    pub(crate) queue: Histogram,
    pub(crate) input: Histogram,
    pub(crate) infer: Histogram,
    pub(crate) output: Histogram,
    pub(crate) encode: Histogram,
    /// From decoded to settled: *queue* to *output*.
    pub(crate) request: Histogram,
}

impl Stages {
    pub(crate) const NAMES: [&str; 7] = ["decode", "queue", "input", "infer", "output", "encode", "request"];

    pub(crate) fn all(&self) -> [&Histogram; 7] {
        [&self.decode, &self.queue, &self.input, &self.infer, &self.output, &self.encode, &self.request]
    }

    fn merge(&mut self, other: &Self) {
        let all = [
            &mut self.decode,
            &mut self.queue,
            &mut self.input,
            &mut self.infer,
            &mut self.output,
            &mut self.encode,
            &mut self.request,
        ];
        all.into_iter().zip(other.all()).for_each(|(sum, more)| sum.merge(more));
    }
}

/// Quantiles of the stages that Triton has summaries of.
#[derive(Clone, Debug, Default)]
pub(crate) struct Recent {
    request: Quantiles,
    queue: Quantiles,
    input: Quantiles,
    infer: Quantiles,
    output: Quantiles,
}

impl Recent {
    /// In ns, by the name of the stage.
    pub(crate) fn read(&self, quantiles: &[f64]) -> Vec<(&'static str, Vec<f64>)> {
        let Self { request, queue, input, infer, output } = self;
        let stages =
            [("request", request), ("queue", queue), ("input", input), ("infer", infer), ("output", output)];
        stages.into_iter().map(|(name, times)| (name, times.read(quantiles))).collect()
    }
}

/// When a request went from stage to stage.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RequestStamps {
    /// Its message was complete.
    pub(crate) arrived: u64,
    /// It was decoded: Triton's start of a request.
    pub(crate) received: u64,
    pub(crate) queued: u64,
}

/// Sums of one model version since it was loaded. One lock covers them, so a snapshot is consistent.
#[derive(Clone, Debug, Default)]
pub(crate) struct Statistics {
    pub(crate) success: Duration,
    pub(crate) fail: Duration,
    /// `fail` by `Failure`.
    pub(crate) failures: [u64; 4],
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
    pub(crate) stages: Stages,
    /// Kept for those who ask for summaries.
    pub(crate) recent: Option<Box<Recent>>,
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
        let (sums, stages) = (self.batches.entry(rows).or_default(), &mut self.stages);
        for (sum, batch, stage, ns) in [
            (&mut self.input, &mut sums.input, &mut stages.input, input),
            (&mut self.infer, &mut sums.infer, &mut stages.infer, infer),
            (&mut self.output, &mut sums.output, &mut stages.output, output),
        ] {
            sum.add(count, ns * count);
            batch.add(1, ns);
            stage.add(count, ns);
        }
        if let Some(recent) = &mut self.recent {
            recent.input.add(count, input, stamps.output_end);
            recent.infer.add(count, infer, stamps.output_end);
            recent.output.add(count, output, stamps.output_end);
        }
    }

    /// Books one request that succeeded.
    pub(crate) fn succeed(&mut self, rows: u64, request: &RequestStamps, batch: &BatchStamps) {
        let queue = batch.taken.saturating_sub(request.queued);
        let whole = batch.output_end.saturating_sub(request.received);
        self.inferences += rows;
        self.queue.add(1, queue);
        self.success.add(1, whole);
        self.stages.decode.add(1, request.queued.saturating_sub(request.arrived));
        self.stages.queue.add(1, queue);
        self.stages.request.add(1, whole);
        if let Some(recent) = &mut self.recent {
            recent.queue.add(1, queue, batch.output_end);
            recent.request.add(1, whole, batch.output_end);
        }
    }

    /// Books one request that failed, `ns` after it was decoded.
    pub(crate) fn fail(&mut self, why: Failure, ns: u64) {
        self.failures[why as usize] += 1;
        self.fail.add(1, ns);
    }

    /// Adds what another load of the same model version summed up.
    pub(crate) fn merge(&mut self, other: &Self) {
        for (sum, more) in [
            (&mut self.success, other.success),
            (&mut self.fail, other.fail),
            (&mut self.queue, other.queue),
            (&mut self.input, other.input),
            (&mut self.infer, other.infer),
            (&mut self.output, other.output),
        ] {
            sum.add(more.count, more.ns);
        }
        self.failures.iter_mut().zip(other.failures).for_each(|(sum, more)| *sum += more);
        self.inferences += other.inferences;
        self.executions += other.executions;
        self.last_inference = self.last_inference.max(other.last_inference);
        self.copied_in += other.copied_in;
        self.copied_out += other.copied_out;
        for (&rows, more) in &other.batches {
            let sums = self.batches.entry(rows).or_default();
            sums.input.add(more.input.count, more.input.ns);
            sums.infer.add(more.infer.count, more.infer.ns);
            sums.output.add(more.output.count, more.output.ns);
        }
        merge_counts(&mut self.reasons, &other.reasons);
        merge_counts(&mut self.fallbacks, &other.fallbacks);
        self.stages.merge(&other.stages);
        if other.recent.is_some() {
            self.recent.clone_from(&other.recent); // those of the last load
        }
    }
}

fn merge_counts(sums: &mut BTreeMap<String, u64>, more: &BTreeMap<String, u64>) {
    for (name, count) in more {
        *sums.entry(name.clone()).or_default() += count;
    }
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;

    use super::*;
    use crate::histogram::SharedHistogram;

    const REQUESTS: u64 = 1_000_000;

    fn ns_each(mut book: impl FnMut(u64)) -> u64 {
        let start = now();
        (0..REQUESTS).for_each(|at| book(at * 7919 % 3_000_000));
        (now() - start) / REQUESTS
    }

    /// `cargo test --release booking -- --ignored --nocapture`
    #[test]
    #[ignore = "a measurement"]
    #[allow(clippy::print_stderr)]
    fn booking_a_request_costs_nanoseconds() {
        let (mut plain, shared) = (Statistics::default(), SharedHistogram::default());
        let mut with_quantiles = Statistics { recent: Some(Box::default()), ..Statistics::default() };
        let stamps = |ns| {
            let request = RequestStamps { arrived: ns, received: 2 * ns, queued: 3 * ns };
            (request, BatchStamps { taken: 5 * ns, output_end: 9 * ns, ..BatchStamps::default() })
        };
        let book = |statistics: &mut Statistics, ns| {
            let (request, batch) = stamps(ns);
            statistics.succeed(1, &request, &batch);
        };
        let execution = |statistics: &mut Statistics, ns| statistics.execution(8, 8, &stamps(ns).1);
        eprintln!("a request: {} ns", ns_each(|ns| book(&mut plain, ns)));
        eprintln!("a batch: {} ns", ns_each(|ns| execution(&mut plain, ns)));
        eprintln!(
            "a reply's encode: {} ns and a clock's {} ns",
            ns_each(|ns| shared.add(ns)),
            ns_each(|_| _ = black_box(now()))
        );
        eprintln!("a request, with quantiles: {} ns", ns_each(|ns| book(&mut with_quantiles, ns)));
        eprintln!("a snapshot: {} ns", ns_each(|_| _ = black_box(plain.clone())));
    }
}
