//! Histograms of times, with the same fixed buckets for every stage, so that servers and stages can be added up.
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use pyo3::pyfunction;

const MICROSECOND: u64 = 1_000;
const MILLISECOND: u64 = 1_000_000;
const SECOND: u64 = 1_000_000_000;

/// Upper bounds in ns, each in its bucket: 1, 2, 5 and so on from 10 us to 10 s. One more bucket has no bound.
pub(crate) const BOUNDS: [u64; 19] = [
    10 * MICROSECOND,
    20 * MICROSECOND,
    50 * MICROSECOND,
    100 * MICROSECOND,
    200 * MICROSECOND,
    500 * MICROSECOND,
    MILLISECOND,
    2 * MILLISECOND,
    5 * MILLISECOND,
    10 * MILLISECOND,
    20 * MILLISECOND,
    50 * MILLISECOND,
    100 * MILLISECOND,
    200 * MILLISECOND,
    500 * MILLISECOND,
    SECOND,
    2 * SECOND,
    5 * SECOND,
    10 * SECOND,
];
const BUCKETS: usize = BOUNDS.len() + 1;

fn bucket(ns: u64) -> usize {
    BOUNDS.partition_point(|&bound| bound < ns)
}

/// `BOUNDS`, for Python.
#[pyfunction]
pub(crate) fn histogram_bounds() -> Vec<u64> {
    BOUNDS.to_vec()
}

/// Under a lock of its owner's.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Histogram {
    pub(crate) counts: [u64; BUCKETS],
    pub(crate) ns: u64,
}

impl Histogram {
    /// Books `count` times of `ns` each.
    pub(crate) fn add(&mut self, count: u64, ns: u64) {
        self.counts[bucket(ns)] += count;
        self.ns += count * ns;
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        self.counts.iter_mut().zip(other.counts).for_each(|(sum, more)| *sum += more);
        self.ns += other.ns;
    }
}

/// For threads that share no lock. What it counts it counts once, but its buckets and its sum are not of one moment.
#[derive(Default)]
pub(crate) struct SharedHistogram {
    counts: [AtomicU64; BUCKETS],
    ns: AtomicU64,
}

impl SharedHistogram {
    pub(crate) fn add(&self, ns: u64) {
        self.counts[bucket(ns)].fetch_add(1, Relaxed);
        self.ns.fetch_add(ns, Relaxed);
    }

    pub(crate) fn read(&self) -> Histogram {
        let mut copy = Histogram { ns: self.ns.load(Relaxed), ..Histogram::default() };
        copy.counts.iter_mut().zip(&self.counts).for_each(|(count, shared)| *count = shared.load(Relaxed));
        copy
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_is_in_its_bucket() {
        let mut histogram = Histogram::default();
        for (at, &bound) in BOUNDS.iter().enumerate() {
            assert_eq!((bucket(bound), bucket(bound + 1)), (at, at + 1));
            histogram.add(2, bound);
        }
        histogram.add(1, u64::MAX >> 1);
        assert_eq!(histogram.counts.iter().sum::<u64>(), 2 * BOUNDS.len() as u64 + 1);
        assert_eq!(histogram.counts[BUCKETS - 1], 1);
    }

    #[test]
    fn shared_ones_add_up_with_others() {
        let (shared, mut sum) = (SharedHistogram::default(), Histogram::default());
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..1000).for_each(|at| shared.add(at * 100)));
            }
        });
        sum.add(5, 70);
        sum.merge(&shared.read());
        assert_eq!((sum.counts.iter().sum::<u64>(), sum.ns), (4005, 4 * 999 * 1000 * 50 + 350));
    }
}
