//! Requests that were refused before they waited for any model, by door and kind of error.
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::{
    control::Door,
    error::{KINDS, Kind},
};

const DOORS: [Door; 2] = [Door::Grpc, Door::Http];

#[derive(Default)]
pub(crate) struct Refusals {
    counts: [[AtomicU64; KINDS]; DOORS.len()],
}

impl Refusals {
    pub(crate) fn count(&self, door: Door, kind: Kind) {
        if let Some(at) = DOORS.iter().position(|&known| known == door) {
            self.counts[at][kind as usize].fetch_add(1, Relaxed);
        }
    }

    /// Door, kind and count, for all that there were.
    pub(crate) fn read(&self) -> Vec<(&'static str, &'static str, u64)> {
        let rows = DOORS.iter().zip(&self.counts).flat_map(|(door, counts)| {
            let row = |(kind, count): (&'static str, &AtomicU64)| (door.name(), kind, count.load(Relaxed));
            Kind::names().into_iter().zip(counts).map(row)
        });
        rows.filter(|row| row.2 > 0).collect()
    }
}
