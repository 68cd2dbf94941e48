//! What a DMA engine is told of a batch: addresses and sizes of what it may copy itself, and of the staging buffer that the
//! CPU copied the rest into.
use crate::{
    buffer::{Buffer, CopyJob, Memory, copy_in_parallel},
    pending::Wanted,
    shm::{Place, Slice},
};

/// Address and bytes of one copy.
pub(crate) type Piece = (usize, usize);

fn region(memory: &Memory) -> Option<&Slice> {
    match memory {
        Memory::Region(slice) if slice.place() != Place::Pageable => Some(slice),
        Memory::Region(_) | Memory::Inline(_) => None,
    }
}

/// Bytes that must be staged: those of messages and of regions that are not page-locked.
pub(crate) fn pageable_bytes<'a>(memories: impl Iterator<Item = &'a Memory>) -> usize {
    memories.filter(|memory| region(memory).is_none()).map(Memory::len).sum()
}

/// Copies what must be staged into `stage` and tells the pieces of the whole batch in order, and the bytes it copied.
/// Neighbours are one piece; none crosses the end of what was page-locked by one call.
pub(crate) fn sources<'a>(
    memories: impl Iterator<Item = &'a Memory>,
    stage: Option<&Buffer>,
) -> (Vec<Piece>, usize) {
    let (mut pieces, mut jobs, mut staged) = (Pieces::default(), Vec::new(), 0);
    for memory in memories {
        match (region(memory), stage) {
            (Some(slice), _) => pieces.add_region(slice, memory.len()),
            (None, Some(stage)) => {
                jobs.push(CopyJob::to_buffer(memory, stage, staged));
                pieces.add(stage.address() + staged, memory.len());
                staged += memory.len();
            }
            (None, None) => pieces.add(memory.address(), memory.len()),
        }
    }
    copy_in_parallel(&jobs);
    (pieces.0, staged)
}

#[derive(Default)]
struct Pieces(Vec<Piece>);

impl Pieces {
    fn add(&mut self, address: usize, length: usize) {
        match self.0.last_mut() {
            Some((start, bytes)) if *start + *bytes == address => *bytes += length,
            _ if length > 0 => self.0.push((address, length)),
            _ => {}
        }
    }

    fn add_region(&mut self, slice: &Slice, length: usize) {
        for (start, bytes) in cut(slice, length) {
            // Memory that was page-locked by two calls is not one piece, though it be neighbours.
            if slice.piece(start) == crate::shm::PIN_PIECE {
                self.0.push((start, bytes));
            } else {
                self.add(start, bytes);
            }
        }
    }
}

/// The first `length` bytes of a region, cut where page-locked pieces end.
fn cut(slice: &Slice, length: usize) -> Vec<Piece> {
    let (mut address, mut left, mut pieces) = (slice.address(), length, Vec::with_capacity(1));
    while left > 0 {
        let bytes = left.min(slice.piece(address));
        pieces.push((address, bytes));
        address += bytes;
        left -= bytes;
    }
    pieces
}

/// Whether a request's output can be written by a DMA engine where the client wants it.
pub(crate) fn is_direct(wanted: &Wanted, length: usize) -> bool {
    matches!(wanted, Wanted::Region(slice) if slice.len() >= length && slice.place() != Place::Pageable)
}

/// Where the parts of an output go: `(offset in the output, address, bytes)`. What is not direct goes to `stage` at its own
/// offset; what nobody wants, or has no room for, goes nowhere.
pub(crate) fn targets<'a>(
    requests: impl Iterator<Item = (&'a Wanted, usize)>,
    stage: Option<&Buffer>,
) -> Vec<(usize, usize, usize)> {
    let (mut offset, mut routes) = (0, Vec::new());
    for (wanted, length) in requests {
        match (wanted, stage) {
            (Wanted::Region(slice), _) if is_direct(wanted, length) => {
                let mut at = offset;
                for (address, bytes) in cut(slice, length) {
                    routes.push((at, address, bytes));
                    at += bytes;
                }
            }
            (Wanted::Inline | Wanted::Region(_), Some(stage)) => {
                push_staged(&mut routes, offset, stage, length);
            }
            (Wanted::Inline | Wanted::Region(_) | Wanted::No, _) => {}
        }
        offset += length;
    }
    routes
}

fn push_staged(routes: &mut Vec<(usize, usize, usize)>, offset: usize, stage: &Buffer, length: usize) {
    let address = stage.address() + offset;
    match routes.last_mut() {
        Some((_, start, bytes)) if *start + *bytes == address => *bytes += length,
        _ => routes.push((offset, address, length)),
    }
}
