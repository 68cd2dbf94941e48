//! What the metrics page counts: the sums of each model version over all its loads. A counter never goes back, neither when a
//! model is loaded again nor when it is unloaded.
use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use parking_lot::Mutex;

use crate::{pending::Intake, stamps::Statistics};

#[derive(Default)]
pub(crate) struct Ledger {
    /// Quantiles are kept of what is opened from now on.
    keeps_quantiles: AtomicBool,
    accounts: Mutex<BTreeMap<(String, i64), Account>>,
}

#[derive(Default)]
struct Account {
    /// Of intakes that are no more.
    closed: Statistics,
    intakes: Vec<Arc<Intake>>,
}

impl Account {
    /// What nobody else holds any more does not change any more.
    fn close_finished(&mut self) {
        let Self { closed, intakes } = self;
        intakes.retain(|intake| {
            let finished = Arc::strong_count(intake) == 1;
            if finished {
                closed.merge(&intake.snapshot());
            }
            !finished
        });
    }
}

impl Ledger {
    pub(crate) fn keep_quantiles(&self) {
        self.keeps_quantiles.store(true, Relaxed);
    }

    /// Books what this intake serves from now on.
    pub(crate) fn open(&self, intake: Arc<Intake>) {
        if self.keeps_quantiles.load(Relaxed) {
            intake.statistics.lock().recent.get_or_insert_default();
        }
        let mut accounts = self.accounts.lock();
        let account = accounts.entry((intake.spec.model.clone(), intake.spec.version)).or_default();
        account.close_finished();
        if account.intakes.iter().all(|known| !Arc::ptr_eq(known, &intake)) {
            account.intakes.push(intake);
        }
    }

    /// Model, version, sums and how many requests wait, for every version that was ever ready.
    pub(crate) fn read(&self) -> Vec<(String, i64, Statistics, usize)> {
        let mut accounts = self.accounts.lock();
        let rows = accounts.iter_mut().map(|((model, version), account)| {
            account.close_finished();
            let mut sums = account.closed.clone();
            account.intakes.iter().for_each(|intake| sums.merge(&intake.snapshot()));
            let waiting = account.intakes.iter().map(|intake| intake.waiting()).sum();
            (model.clone(), *version, sums, waiting)
        });
        rows.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{pending::Spec, stamps::BatchStamps};

    fn intake() -> Arc<Intake> {
        let (model, inputs, outputs) = ("m".into(), vec![], vec![]);
        let spec =
            Spec { model, version: 1, max_batch: 8, inputs, outputs, on_device: false, text_only: false };
        Arc::new(Intake::new(spec))
    }

    fn book(intake: &Intake, rows: u64) {
        let mut statistics = intake.statistics.lock();
        statistics.execution(rows, 1, &BatchStamps::default());
        statistics.inferences += rows;
    }

    #[test]
    fn loads_add_up_and_nothing_goes_back() {
        let (ledger, first) = (Ledger::default(), intake());
        ledger.open(first.clone());
        ledger.open(first.clone());
        book(&first, 2);
        let inferences = || ledger.read().iter().map(|row| row.2.inferences).sum::<u64>();
        assert_eq!(inferences(), 2);
        let second = intake();
        ledger.open(second.clone());
        book(&second, 3);
        book(&first, 1); // a batch of the load before ends late
        assert_eq!(inferences(), 6);
        drop(first);
        assert_eq!((inferences(), inferences()), (6, 6));
        drop(second);
        assert_eq!(inferences(), 6);
        let (_, _, sums, waiting) = &ledger.read()[0];
        let executions: Vec<_> = sums.batches.iter().map(|(&rows, sums)| (rows, sums.infer.count)).collect();
        assert_eq!((sums.executions, *waiting, executions), (3, 0, vec![(1, 1), (2, 1), (3, 1)]));
        assert!(ledger.accounts.lock().values().all(|account| account.intakes.is_empty()));
    }
}
