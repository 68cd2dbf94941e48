//! Memory of our own for tensors: blocks out of a pool, and the copies between blocks, messages and regions.
//!
//! One of the two files with `unsafe`: what it hands out are values that keep their bytes alive.
#![allow(unsafe_code)]
use std::{
    alloc::{Layout, alloc, dealloc},
    collections::HashMap,
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    ptr::{self, NonNull},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use bytes::Bytes;
use parking_lot::Mutex;

use crate::{
    error::{Error, Result},
    shm::Slice,
};

/// Cache-line alignment; what vector units and ONNX Runtime like best.
pub(crate) const ALIGNMENT: usize = 64;
/// Free blocks above this many bytes in sum go back to the allocator.
const KEPT_BYTES: usize = 1 << 30;

#[derive(Default)]
struct Pool {
    free: HashMap<usize, Vec<Block>>,
    /// Page-locked blocks are kept for ever: unlocking one costs more than its memory is worth.
    pinned: HashMap<usize, Vec<Block>>,
    /// In `free`.
    bytes: usize,
}

static POOL: Mutex<Option<Pool>> = Mutex::new(None);
/// Bytes of all page-locked blocks, in the pool or in use.
static PINNED_BYTES: AtomicUsize = AtomicUsize::new(0);

/// Bytes of page-locked blocks: of all, and of those in use.
pub(crate) fn pinned_bytes() -> (usize, usize) {
    let free = POOL.lock().as_ref().map_or(0, |pool| {
        pool.pinned.iter().map(|(capacity, blocks)| capacity * blocks.len()).sum::<usize>()
    });
    let all = PINNED_BYTES.load(Relaxed);
    (all, all.saturating_sub(free))
}

/// A 64-byte aligned piece of memory; it returns to the pool when its owner drops it.
struct Block {
    address: NonNull<u8>,
    capacity: usize,
    pinned: bool,
}

// SAFETY: a block owns its memory alone, like a `Box<[u8]>`.
unsafe impl Send for Block {}
unsafe impl Sync for Block {}

/// Powers of two: batches of any number of rows then share few classes, and their pages stay mapped. What a class is too
/// large is never touched, so it costs addresses and no memory.
fn capacity_class(length: usize) -> usize {
    length.max(ALIGNMENT).checked_next_power_of_two().unwrap_or(length)
}

impl Block {
    /// # Errors
    /// `Unavailable` when there is no such memory: a client chooses how large its outputs are.
    fn take(length: usize) -> Result<Self> {
        let capacity = capacity_class(length);
        if let Some(pool) = POOL.lock().as_mut()
            && let Some(block) = pool.free.get_mut(&capacity).and_then(Vec::pop)
        {
            pool.bytes -= capacity;
            return Ok(block);
        }
        let layout = Layout::from_size_align(capacity, ALIGNMENT).map_err(|_| no_memory(length))?;
        // SAFETY: the layout is not empty, a class is at least `ALIGNMENT` bytes.
        let address = NonNull::new(unsafe { alloc(layout) }).ok_or_else(|| no_memory(length))?;
        Ok(Self { address, capacity, pinned: false })
    }

    fn layout(capacity: usize) -> Layout {
        Layout::from_size_align(capacity, ALIGNMENT).expect("a capacity class is a valid size")
    }

    fn release(self) {
        // SAFETY: allocated in `take` with this very layout, and `self` was its only owner.
        unsafe { dealloc(self.address.as_ptr(), Self::layout(self.capacity)) }
    }
}

fn no_memory(length: usize) -> Error {
    Error::unavailable(format!("there is no memory for a tensor or message of {length} bytes"))
}

fn give_back(block: Block) {
    let mut guard = POOL.lock();
    let pool = guard.get_or_insert_with(Pool::default);
    if block.pinned {
        return pool.pinned.entry(block.capacity).or_default().push(block);
    }
    if pool.bytes + block.capacity > KEPT_BYTES {
        drop(guard);
        return block.release();
    }
    pool.bytes += block.capacity;
    pool.free.entry(block.capacity).or_default().push(block);
}

/// Blocks of a frame's size come from memory that was used before, and not fresh, page by page, from the kernel: a quarter less
/// CPU for a message of 1 MiB (1,265 us against 960 us). Up to `FREED_BYTES` at the end of each heap stay with the process.
#[cfg(target_env = "gnu")]
pub(crate) fn reuse_freed_memory() {
    const FRAME_BYTES: libc::c_int = 4 << 20;
    const FREED_BYTES: libc::c_int = 64 << 20;
    // SAFETY: both set a number of the allocator, which it reads under its own locks.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, FRAME_BYTES);
        libc::mallopt(libc::M_TRIM_THRESHOLD, FREED_BYTES);
    }
}

#[cfg(not(target_env = "gnu"))]
pub(crate) fn reuse_freed_memory() {}

/// `length` bytes of a block. Writable through its address until it is frozen into `Bytes`.
pub(crate) struct Buffer {
    block: Option<Block>,
    start: usize,
    length: usize,
}

impl Buffer {
    /// # Errors
    /// `Unavailable` when there is no such memory.
    pub(crate) fn new(length: usize) -> Result<Self> {
        Ok(Self { block: Some(Block::take(length)?), start: 0, length })
    }

    /// A page-locked buffer that was used before, if there is one.
    pub(crate) fn reuse_pinned(length: usize) -> Option<Self> {
        let block = POOL.lock().as_mut()?.pinned.get_mut(&capacity_class(length))?.pop()?;
        Some(Self { block: Some(block), start: 0, length })
    }

    /// Its whole capacity has been page-locked.
    pub(crate) fn mark_pinned(&mut self) {
        if let Some(block) = &mut self.block {
            block.pinned = true;
            PINNED_BYTES.fetch_add(block.capacity, Relaxed);
        }
    }

    /// Bytes of the block behind it.
    pub(crate) fn capacity(&self) -> usize {
        self.block.as_ref().map_or(0, |block| block.capacity)
    }

    /// A buffer whose *end* is aligned: the last tensor of a message is its tail, so it is aligned too whenever its
    /// size is a multiple of the alignment.
    ///
    /// # Errors
    /// `Unavailable` when there is no such memory.
    pub(crate) fn ending_aligned(length: usize) -> Result<Self> {
        let padded = length.checked_next_multiple_of(ALIGNMENT).ok_or_else(|| no_memory(length))?;
        Ok(Self { block: Some(Block::take(padded)?), start: padded - length, length })
    }

    pub(crate) fn address(&self) -> usize {
        self.block.as_ref().map_or(0, |block| block.address.as_ptr() as usize + self.start)
    }

    pub(crate) fn len(&self) -> usize {
        self.length
    }

    /// Writes `bytes` at `at`; panics where they would not fit.
    pub(crate) fn write(&mut self, at: usize, bytes: &[u8]) {
        assert!(at <= self.length && bytes.len() <= self.length - at, "write past the end of a buffer");
        // SAFETY: checked above; `&mut self` is the only access to the block.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), (self.address() + at) as *mut u8, bytes.len()) }
    }

    pub(crate) fn freeze(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: `start + length` lies within the block's capacity; its bytes are plain data, read after they were written.
        unsafe { std::slice::from_raw_parts(self.address() as *const u8, self.length) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(block) = self.block.take() {
            give_back(block);
        }
    }
}

/// Memory that a child process maps, too. It is sealed: nobody can shrink it under a reader. What the child writes may change
/// at any time; the bytes are plain data and any value of them is valid.
pub(crate) struct SharedBlock {
    file: OwnedFd,
    address: NonNull<u8>,
    length: usize,
}

// SAFETY: a block owns its mapping alone, like a `Box<[u8]>`.
unsafe impl Send for SharedBlock {}
unsafe impl Sync for SharedBlock {}

impl SharedBlock {
    /// # Errors
    /// The operating system's, when there is no such memory.
    pub(crate) fn new(length: usize) -> io::Result<Self> {
        use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
        let file = memfd_create("headrace", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, length as u64)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        // SAFETY: a fresh shared mapping of an open descriptor; the kernel chooses the address.
        let address = unsafe {
            let access = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(ptr::null_mut(), length, access, libc::MAP_SHARED, file.as_raw_fd(), 0)
        };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let address = NonNull::new(address.cast()).ok_or_else(io::Error::last_os_error)?;
        Ok(Self { file, address, length })
    }

    pub(crate) fn len(&self) -> usize {
        self.length
    }

    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Copies the bytes of `memory` to `at`; panics where they would not fit.
    pub(crate) fn write(&self, at: usize, memory: &Memory) {
        assert!(at <= self.length && memory.len() <= self.length - at, "write past the end of a block");
        copy(memory.address(), self.address.as_ptr() as usize + at, memory.len());
    }

    /// `length` bytes from `at` on, which keep the block; `None` where it has no such bytes.
    pub(crate) fn part(self: &Arc<Self>, at: usize, length: usize) -> Option<Bytes> {
        at.checked_add(length).filter(|&end| end <= self.length)?;
        Some(Bytes::from_owner(BlockPart { block: self.clone(), at, length }))
    }
}

impl Drop for SharedBlock {
    fn drop(&mut self) {
        // SAFETY: the range is the one that `new` mapped, and `self` was its only owner.
        unsafe { libc::munmap(self.address.as_ptr().cast(), self.length) };
    }
}

struct BlockPart {
    block: Arc<SharedBlock>,
    at: usize,
    length: usize,
}

impl AsRef<[u8]> for BlockPart {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: `part` checked the bounds; the mapping lives as long as the block and cannot shrink.
        unsafe { std::slice::from_raw_parts(self.block.address.as_ptr().add(self.at), self.length) }
    }
}

/// Where the bytes of a tensor lie; the value keeps them valid.
#[derive(Clone)]
pub(crate) enum Memory {
    Inline(Bytes),
    Region(Slice),
}

impl Memory {
    pub(crate) fn address(&self) -> usize {
        match self {
            Self::Inline(bytes) => bytes.as_ptr() as usize,
            Self::Region(slice) => slice.address(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Inline(bytes) => bytes.len(),
            Self::Region(slice) => slice.len(),
        }
    }

    /// A reference to the same bytes for a reply, or a copy where they lie in client memory: a socket must not read from
    /// a region that its owner may truncate. Also tells whether it copied.
    ///
    /// # Errors
    /// `Unavailable` when there is no memory for the copy.
    pub(crate) fn to_reply(&self) -> Result<(Bytes, bool)> {
        match self {
            Self::Inline(bytes) => Ok((bytes.clone(), false)),
            Self::Region(slice) => {
                let buffer = Buffer::new(slice.len())?;
                copy(slice.address(), buffer.address(), slice.len());
                Ok((buffer.freeze(), true))
            }
        }
    }

    /// Copies these bytes to the start of `target`, which the caller has found large enough.
    pub(crate) fn copy_into(&self, target: &Slice) {
        assert!(self.len() <= target.len(), "copy past the end of a region");
        copy(self.address(), target.address(), self.len());
    }
}

/// Copies `sources` one after another to the start of `buffer`, neighbours in memory by one call. Returns the bytes copied.
pub(crate) fn gather<'a>(sources: impl Iterator<Item = &'a Memory>, buffer: &Buffer) -> usize {
    let (mut at, mut start, mut length) = (0, 0, 0);
    let mut flush = |start: usize, length: usize| {
        assert!(length <= buffer.len() - at, "gather past the end of a buffer");
        copy(start, buffer.address() + at, length);
        at += length;
    };
    for memory in sources {
        if memory.address() == start + length {
            length += memory.len();
        } else {
            flush(start, length);
            (start, length) = (memory.address(), memory.len());
        }
    }
    flush(start, length);
    at
}

/// Copies `bytes` to the start of a client's region, which the caller has found large enough.
pub(crate) fn copy_to_region(bytes: &[u8], target: &Slice) {
    assert!(bytes.len() <= target.len(), "copy past the end of a region");
    copy(bytes.as_ptr() as usize, target.address(), bytes.len());
}

/// A copy that is yet to be made, from memory and to a buffer that outlive it.
pub(crate) struct CopyJob<'a> {
    from: &'a Memory,
    to: usize,
}

impl<'a> CopyJob<'a> {
    /// From `memory` to `at` in the buffer.
    pub(crate) fn to_buffer(memory: &'a Memory, buffer: &'a Buffer, at: usize) -> Self {
        assert!(at <= buffer.len() && memory.len() <= buffer.len() - at, "copy past the end of a buffer");
        Self { from: memory, to: buffer.address() + at }
    }

    fn run(&self) {
        copy(self.from.address(), self.to, self.from.len());
    }
}

/// Makes the copies, with some threads when they are large: one core copies a fifth of what the link carries.
pub(crate) fn copy_in_parallel(jobs: &[CopyJob<'_>]) {
    const WORTH_A_THREAD: usize = 4 << 20;
    const MOST_THREADS: usize = 4;
    let bytes: usize = jobs.iter().map(|job| job.from.len()).sum();
    let threads = (bytes / WORTH_A_THREAD).clamp(1, MOST_THREADS).min(jobs.len().max(1));
    if threads == 1 {
        return jobs.iter().for_each(CopyJob::run);
    }
    std::thread::scope(|scope| {
        for part in jobs.chunks(jobs.len().div_ceil(threads)) {
            scope.spawn(|| part.iter().for_each(CopyJob::run));
        }
    });
}

fn copy(from: usize, to: usize, length: usize) {
    // SAFETY: callers are the functions of this file; each took both addresses from a value that keeps them mapped and
    // checked the length. A client may name one region as input and output, hence `copy` and not `copy_nonoverlapping`.
    // Client memory may change under the copy; the bytes are plain data and any value of them is valid.
    unsafe { ptr::copy(from as *const u8, to as *mut u8, length) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_message_buffer_is_aligned() {
        for length in [0, 1, 63, 64, 65, 1000, (2 << 20) + 1] {
            let buffer = Buffer::ending_aligned(length).ok().unwrap();
            assert_eq!((buffer.address() + length) % ALIGNMENT, 0);
            assert_eq!(buffer.len(), length);
        }
    }

    #[test]
    fn gather_keeps_order_and_counts_bytes() {
        let whole = Bytes::from_static(b"abcdef");
        let parts = [whole.slice(0..2), whole.slice(2..3), Bytes::from_static(b"XY"), whole.slice(3..6)];
        let parts = parts.map(Memory::Inline);
        let buffer = Buffer::new(8).ok().unwrap();
        assert_eq!(gather(parts.iter(), &buffer), 8);
        assert_eq!(buffer.freeze(), Bytes::from_static(b"abcXYdef"));
    }

    #[test]
    #[should_panic(expected = "past the end")]
    fn gather_never_writes_past_its_buffer() {
        gather([Memory::Inline(Bytes::from_static(b"abc"))].iter(), &Buffer::new(2).ok().unwrap());
    }

    #[test]
    fn memory_that_is_not_there_is_an_error() {
        for length in [1 << 50, 1 << 62, usize::MAX - 70, usize::MAX] {
            assert!(Buffer::new(length).is_err() && Buffer::ending_aligned(length).is_err());
        }
    }

    #[test]
    fn a_block_is_used_again() {
        let length = 7 << 20; // a class that no other test takes
        let first = Buffer::new(length).ok().unwrap().address();
        assert_eq!(Buffer::new(length).ok().unwrap().address(), first);
    }
}
