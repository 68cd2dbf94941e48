//! Quantiles of the times of the last minute, for the summaries that `--metrics-config=summary_latencies=true` asks for.
use crate::stamps::now;

/// Times are told apart by their five leading bits: a quantile is off by 1.6 % at most, whatever its size.
const BITS: u32 = 5;
const CELLS: usize = 40 << BITS;
/// What is older than all windows is forgotten.
const WINDOWS: usize = 5;
const WINDOW_NS: u64 = 12_000_000_000;

/// How often each time came up, in windows that take turns.
#[derive(Clone, Debug)]
pub(crate) struct Quantiles {
    windows: [Box<[u32]>; WINDOWS],
    /// Number of the window that is filled now: its start by `WINDOW_NS`.
    current: u64,
}

impl Default for Quantiles {
    fn default() -> Self {
        Self { windows: std::array::from_fn(|_| vec![0; CELLS].into()), current: 0 }
    }
}

fn cell(ns: u64) -> usize {
    let octave = ns.max(1).ilog2().saturating_sub(BITS);
    let at = (u64::from(octave) << BITS) + (ns >> octave);
    usize::try_from(at).map_or(CELLS - 1, |at| at.min(CELLS - 1))
}

/// The middle of a cell.
#[allow(clippy::cast_precision_loss)] // it is an estimate
fn middle(cell: usize) -> f64 {
    let octave = (cell >> BITS).saturating_sub(1);
    let start = (cell - (octave << BITS)) << octave;
    start as f64 + ((1u64 << octave) - 1) as f64 / 2.0
}

impl Quantiles {
    /// Books `count` times of `ns` each, at a time of `now()`.
    pub(crate) fn add(&mut self, count: u64, ns: u64, at: u64) {
        self.turn(at);
        let window = usize::try_from(self.current).unwrap_or_default() % WINDOWS;
        let booked = &mut self.windows[window][cell(ns)];
        *booked = booked.saturating_add(u32::try_from(count).unwrap_or(u32::MAX));
    }

    /// Empties the windows that have been passed since the last call.
    fn turn(&mut self, at: u64) {
        let number = at / WINDOW_NS;
        let passed = number.saturating_sub(self.current).min(WINDOWS as u64);
        for step in 1..=passed {
            let window = usize::try_from(self.current + step).unwrap_or_default() % WINDOWS;
            self.windows[window].fill(0);
        }
        self.current = self.current.max(number);
    }

    /// The quantiles in ns; NaN when there was nothing.
    pub(crate) fn read(&self, quantiles: &[f64]) -> Vec<f64> {
        self.read_at(quantiles, now())
    }

    #[allow(clippy::cast_precision_loss)] // counts of a minute
    fn read_at(&self, quantiles: &[f64], at: u64) -> Vec<f64> {
        let mut fresh = self.clone();
        fresh.turn(at);
        let mut counts = vec![0u64; CELLS];
        for window in &fresh.windows {
            counts.iter_mut().zip(window).for_each(|(sum, &count)| *sum += u64::from(count));
        }
        let total: u64 = counts.iter().sum();
        let value = |&quantile: &f64| {
            let (rank, mut below) = ((quantile * total as f64).ceil().max(1.0), 0);
            let found = counts.iter().position(|count| {
                below += count;
                below as f64 >= rank
            });
            found.filter(|_| total > 0).map_or(f64::NAN, middle)
        };
        quantiles.iter().map(value).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[allow(clippy::cast_precision_loss)]
    fn a_time_and_the_middle_of_its_cell_are_near() {
        for power in 0..43 {
            for ns in [1u64 << power, (1 << power) + (1 << power) / 3, (2 << power) - 1] {
                let near = middle(cell(ns));
                assert!((near - ns as f64).abs() <= ns as f64 / 63.0, "{ns}: {near}");
            }
        }
        assert_eq!((cell(0), cell(u64::MAX)), (0, CELLS - 1));
    }

    #[test]
    #[allow(clippy::cast_precision_loss)]
    fn quantiles_of_the_last_minute() {
        let mut quantiles = Quantiles::default();
        let start = 1000 * WINDOW_NS;
        (1..=1000).for_each(|at| quantiles.add(1, at * 1000, start));
        for (quantile, ns) in
            [0.0, 0.5, 0.9, 0.99, 1.0].iter().zip([1_000.0, 500_000.0, 900_000.0, 990_000.0, 1e6])
        {
            let found = quantiles.read_at(&[*quantile], start)[0];
            assert!((found - ns).abs() <= ns / 50.0, "{quantile}: {found}");
        }
        quantiles.add(10_000, 7_000_000, start + 4 * WINDOW_NS);
        assert!(quantiles.read_at(&[0.01], start + 4 * WINDOW_NS)[0] < 1e6);
        assert!(quantiles.read_at(&[0.01], start + 5 * WINDOW_NS)[0] > 6.8e6);
        assert!(quantiles.read_at(&[0.5], start + 9 * WINDOW_NS)[0].is_nan());
    }
}
