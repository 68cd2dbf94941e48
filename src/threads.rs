//! The threads of the wire: few for small messages, more for connections that carry big ones.
//!
//! A small request costs less the more connections its thread polls at once (57 us of CPU with one thread, 68 us with four).
//! A big one costs copies, which only more threads make faster: one thread carries 3.4 GB/s (all measured on 16 cores).
use std::{io, thread::available_parallelism, time::Duration};

use tokio::runtime::{Builder, Handle, Runtime};

/// Threads that compress and decompress, at most.
const MOST_COMPRESSORS: usize = 8;

pub(crate) struct Threads {
    doors: Runtime,
    bulk: Runtime,
}

impl Threads {
    /// `doors` threads for small messages; 0: one for every 16 cores, at most four.
    pub(crate) fn start(doors: usize) -> io::Result<Self> {
        let cores = available_parallelism().map_or(1, std::num::NonZero::get);
        let doors = if doors == 0 { (cores / 16).clamp(1, 4) } else { doors };
        Ok(Self { doors: runtime(doors, cores)?, bulk: runtime((cores / 2).clamp(1, 8), cores)? })
    }

    pub(crate) fn doors(&self) -> &Runtime {
        &self.doors
    }

    /// Where connections with big messages go.
    pub(crate) fn bulk(&self) -> Handle {
        self.bulk.handle().clone()
    }

    pub(crate) fn stop(self) {
        self.doors.shutdown_timeout(Duration::from_secs(1));
        self.bulk.shutdown_timeout(Duration::from_secs(1));
    }
}

fn runtime(threads: usize, cores: usize) -> io::Result<Runtime> {
    Builder::new_multi_thread()
        .worker_threads(threads)
        .max_blocking_threads(cores.min(MOST_COMPRESSORS))
        .thread_name("wire")
        .enable_all()
        .build()
}
