//! System shared memory: the regions that clients registered, their mappings, and the leases that requests hold on them.
//!
//! Client memory is hostile: it can be truncated under a read. A SIGBUS handler puts a zero page in place of a page that is
//! gone and marks the mapping poisoned, so that only the requests on it fail. One of the two files with `unsafe`.
#![allow(unsafe_code)]
use std::{
    collections::HashMap,
    ffi::CString,
    fs::File,
    io,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd},
        unix::fs::MetadataExt,
    },
    ptr,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{
            AtomicBool, AtomicU64, AtomicUsize,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
};

use parking_lot::{Mutex, RwLock};

use crate::error::{Error, Kind, Result};

/// Keys that Triton's Python backend keeps for itself.
const RESERVED_PREFIX: &str = "triton_python_backend_shm_region_";

/// Regions that may be registered at a time, and bytes of a name: a client may forget to unregister.
const MOST_REGIONS: usize = 1 << 17;
const LONGEST_NAME: usize = 1024;

/// The address range of one mapping, where a signal handler can find it.
struct Guard {
    start: AtomicUsize,
    end: AtomicUsize,
    poisoned: AtomicBool,
}

static GUARDS: [Guard; 4096] = [const {
    Guard { start: AtomicUsize::new(0), end: AtomicUsize::new(0), poisoned: AtomicBool::new(false) }
}; 4096];
static CLAIM: Mutex<()> = Mutex::new(());
static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();

fn claim_guard(start: usize, length: usize) -> Option<&'static Guard> {
    let _claim = CLAIM.lock();
    let guard = GUARDS.iter().find(|guard| guard.start.load(Relaxed) == 0)?;
    guard.poisoned.store(false, Relaxed);
    guard.end.store(start + length, Relaxed);
    guard.start.store(start, Release);
    Some(guard)
}

extern "C" fn on_bus_error(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid `siginfo_t` to a handler installed with SA_SIGINFO.
    let address = unsafe { (*info).si_addr() } as usize;
    let hit = GUARDS.iter().find(|guard| {
        let start = guard.start.load(Acquire);
        start != 0 && (start..guard.end.load(Relaxed)).contains(&address)
    });
    match hit {
        Some(guard) if map_zero_page(address) => guard.poisoned.store(true, Release),
        _ => pass_on(signal, info, context),
    }
}

/// Puts a private zero page over the page of `address`. Async-signal-safe: two plain system calls.
fn map_zero_page(address: usize) -> bool {
    // SAFETY: the page belongs to a mapping of ours, so nothing else can lose its memory by MAP_FIXED.
    unsafe {
        let page = usize::try_from(libc::sysconf(libc::_SC_PAGESIZE)).unwrap_or(4096);
        let start = (address & !(page - 1)) as *mut libc::c_void;
        let flags = libc::MAP_FIXED | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        libc::mmap(start, page, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) == start
    }
}

/// A fault that is not ours goes where it went before this handler was there.
fn pass_on(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let Some(previous) = PREVIOUS.get() else { return };
    let handler = previous.sa_sigaction;
    // SAFETY: the handler was installed by someone with the signature that its flags say.
    unsafe {
        if handler == libc::SIG_DFL || handler == libc::SIG_IGN {
            libc::sigaction(signal, previous, ptr::null_mut()); // the faulting instruction runs again and ends the process
        } else if previous.sa_flags & libc::SA_SIGINFO != 0 {
            let call: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) =
                std::mem::transmute(handler);
            call(signal, info, context);
        } else {
            let call: extern "C" fn(libc::c_int) = std::mem::transmute(handler);
            call(signal);
        }
    }
}

/// Installs the SIGBUS handler; once is enough, further calls do nothing.
pub(crate) fn guard_against_truncation() {
    PREVIOUS.get_or_init(|| {
        // SAFETY: plain sigaction with a handler that lives as long as the process. SA_ONSTACK and SA_NODEFER let a
        // previous handler behave as it would alone.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            let mut previous: libc::sigaction = std::mem::zeroed();
            let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = on_bus_error;
            action.sa_sigaction = handler as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
            libc::sigaction(libc::SIGBUS, &raw const action, &raw mut previous);
            previous
        }
    });
}

/// Largest piece of a mapping that is page-locked by one call; a DMA must not cross from one piece to the next.
pub(crate) const PIN_PIECE: usize = 1 << 30;

/// Memory that nobody can reach any more and that Python must let go of (page-locking, a device handle) before it ends.
static RETIRED: Mutex<Vec<Retired>> = Mutex::new(Vec::new());

/// A row for Python: the device, or `None` for a page-locked mapping of host memory.
pub(crate) struct Retired {
    pub(crate) device: Option<i32>,
    pub(crate) address: usize,
    pub(crate) length: usize,
}

/// What has been retired and not been buried yet.
pub(crate) fn retired() -> Vec<(Option<i32>, usize, usize)> {
    RETIRED.lock().iter().map(|row| (row.device, row.address, row.length)).collect()
}

/// Python has let go of the retired memory at this address.
pub(crate) fn bury(address: usize) {
    let mut rows = RETIRED.lock();
    if let Some(at) = rows.iter().position(|row| row.address == address) {
        let row = rows.swap_remove(at);
        if row.device.is_none() {
            unmap(row.address, row.length);
        }
    }
}

/// A whole shared-memory object in our address space. Unmapped when the last lease on it ends; a page-locked one is
/// retired instead, for Python to unlock it first.
struct Mapping {
    address: usize,
    length: usize,
    guard: &'static Guard,
    /// Device and inode of the object.
    identity: (u64, u64),
    /// Open for processes that shall map the object too: its key may be unlinked by then.
    file: File,
    /// No other mapping of this process has, or had, this number.
    number: u64,
    /// Whether Python page-locked it, or why not; `None` until it tried.
    pinned: Mutex<Option<std::result::Result<(), String>>>,
}

impl Mapping {
    fn new(file: &File, length: usize, identity: (u64, u64)) -> std::result::Result<Self, String> {
        static NUMBERS: AtomicU64 = AtomicU64::new(1);
        let kept = file.try_clone().map_err(|error| error.to_string())?;
        // SAFETY: a fresh shared mapping of an open descriptor; the kernel chooses the address.
        let address = unsafe {
            let access = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(ptr::null_mut(), length, access, libc::MAP_SHARED, file.as_raw_fd(), 0)
        };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error().to_string());
        }
        let address = address as usize;
        if let Some(guard) = claim_guard(address, length) {
            let number = NUMBERS.fetch_add(1, Relaxed);
            Ok(Self { address, length, guard, identity, file: kept, number, pinned: Mutex::new(None) })
        } else {
            unmap(address, length);
            Err(format!("{} shared memory objects are mapped already", GUARDS.len()))
        }
    }

    fn poisoned(&self) -> bool {
        self.guard.poisoned.load(Acquire)
    }

    fn pinned(&self) -> bool {
        matches!(&*self.pinned.lock(), Some(Ok(())))
    }
}

fn unmap(address: usize, length: usize) {
    // SAFETY: the range is one that `Mapping::new` mapped and nobody can reach any more.
    unsafe { libc::munmap(address as *mut libc::c_void, length) };
}

impl Drop for Mapping {
    fn drop(&mut self) {
        self.guard.start.store(0, Release);
        if self.pinned() {
            RETIRED.lock().push(Retired { device: None, address: self.address, length: self.length });
        } else {
            unmap(self.address, self.length);
        }
    }
}

/// Memory of a device that a client shared by its handle. Retired when the last lease ends: Python closes the handle.
struct DeviceMemory {
    device: i32,
    address: usize,
    length: usize,
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        RETIRED.lock().push(Retired {
            device: Some(self.device),
            address: self.address,
            length: self.length,
        });
    }
}

#[derive(Clone)]
enum Owner {
    Host(Arc<Mapping>),
    Device(Arc<DeviceMemory>),
}

/// Where the bytes of a lease are, as a DMA engine sees them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Host memory that only the CPU should copy.
    Pageable,
    Pinned,
    Device(i32),
}

/// A lease on a part of a region: it stays mapped while the lease lives, whatever the client unregisters or unlinks.
#[derive(Clone)]
pub(crate) struct Slice {
    owner: Owner,
    address: usize,
    length: usize,
    region: Arc<str>,
}

impl Slice {
    pub(crate) fn address(&self) -> usize {
        self.address
    }

    pub(crate) fn len(&self) -> usize {
        self.length
    }

    /// The object that the lease is on, for another process to map, and where in it the lease begins; `None` for memory of a
    /// device.
    pub(crate) fn object(&self) -> Option<(Object, usize)> {
        match &self.owner {
            Owner::Host(mapping) => Some((Object(mapping.clone()), self.address - mapping.address)),
            Owner::Device(_) => None,
        }
    }

    pub(crate) fn place(&self) -> Place {
        match &self.owner {
            Owner::Host(mapping) if mapping.pinned() => Place::Pinned,
            Owner::Host(_) => Place::Pageable,
            Owner::Device(memory) => Place::Device(memory.device),
        }
    }

    /// Whether the first `nbytes` bytes and another lease's bytes are in one object of the host and have some in common. Two
    /// mappings of one object, which grew between, count as overlapping throughout.
    pub(crate) fn shares_bytes(&self, nbytes: usize, other: &Self) -> bool {
        match (&self.owner, &other.owner) {
            (Owner::Host(a), Owner::Host(b)) if Arc::ptr_eq(a, b) => {
                self.address < other.address + other.length && other.address < self.address + nbytes
            }
            (Owner::Host(a), Owner::Host(b)) => a.identity == b.identity,
            _ => false,
        }
    }

    /// Bytes from `address` on that one DMA may cover: up to the end of the piece that was page-locked by one call.
    pub(crate) fn piece(&self, address: usize) -> usize {
        match &self.owner {
            Owner::Host(mapping) => PIN_PIECE - (address - mapping.address) % PIN_PIECE,
            Owner::Device(_) => usize::MAX,
        }
    }

    /// # Errors
    /// `InvalidArgument` when the client took memory away that a lease on this mapping covers.
    pub(crate) fn check_intact(&self) -> Result<()> {
        match &self.owner {
            Owner::Host(mapping) if mapping.poisoned() => {
                let region = &self.region;
                Err(Error::invalid(format!(
                    "shared memory region '{region}' was truncated while it was in use; register it again at its new size"
                )))
            }
            Owner::Host(_) | Owner::Device(_) => Ok(()),
        }
    }
}

/// A shared-memory object, kept open.
pub(crate) struct Object(Arc<Mapping>);

/// Tells whether an object is still in use here.
pub(crate) struct ObjectWatch(Weak<Mapping>);

impl Object {
    pub(crate) fn number(&self) -> u64 {
        self.0.number
    }

    pub(crate) fn len(&self) -> usize {
        self.0.length
    }

    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.file.as_fd()
    }

    pub(crate) fn watch(&self) -> ObjectWatch {
        ObjectWatch(Arc::downgrade(&self.0))
    }
}

impl ObjectWatch {
    pub(crate) fn is_gone(&self) -> bool {
        self.0.strong_count() == 0
    }
}

struct Region {
    name: Arc<str>,
    /// Of the shared-memory object; empty for memory of a device.
    key: String,
    offset: usize,
    length: usize,
    owner: Owner,
}

impl Region {
    fn is_host(&self) -> bool {
        matches!(self.owner, Owner::Host(_))
    }

    fn holders(&self) -> usize {
        match &self.owner {
            Owner::Host(mapping) => Arc::strong_count(mapping),
            Owner::Device(memory) => Arc::strong_count(memory),
        }
    }

    /// Tells which mapping or device memory is behind it: where that lies in our own memory.
    fn memory(&self) -> usize {
        match &self.owner {
            Owner::Host(mapping) => Arc::as_ptr(mapping) as usize,
            Owner::Device(memory) => Arc::as_ptr(memory) as usize,
        }
    }
}

/// A row of the status verb.
pub(crate) struct RegionStatus {
    pub(crate) name: String,
    pub(crate) key: String,
    pub(crate) offset: usize,
    pub(crate) length: usize,
    /// Requests that hold a part of its mapping now, under whatever name.
    pub(crate) leases: usize,
    /// The device whose memory it is; `None` for the host's.
    pub(crate) device: Option<i32>,
    /// Empty: page-locked. Otherwise why it is not.
    pub(crate) unpinned: String,
}

/// The mapping behind a registration, for Python to page-lock it.
pub(crate) struct Registered {
    pub(crate) address: usize,
    pub(crate) length: usize,
    /// Nobody has tried yet.
    pub(crate) to_be_pinned: bool,
}

#[derive(Default)]
pub(crate) struct Regions {
    table: RwLock<HashMap<Arc<str>, Region>>,
    /// One mapping for each (device, inode): names that share a key share it, as long as the file keeps its size.
    mappings: Mutex<HashMap<(u64, u64), Weak<Mapping>>>,
}

impl Regions {
    /// Maps the object `key` and registers its bytes `offset .. offset + length` as `name`.
    ///
    /// # Errors
    /// `InvalidArgument` for a key or bounds that cannot be, `AlreadyExists` for a taken name, `Internal` when the object
    /// cannot be opened.
    pub(crate) fn register(&self, name: &str, key: &str, offset: u64, length: u64) -> Result<Registered> {
        let bare = check_key(name, key)?;
        let taken =
            || Error::new(Kind::AlreadyExists, format!("shared memory region '{name}' already in manager"));
        if name.is_empty() {
            return Err(Error::invalid("shared memory region has no name"));
        }
        if name.len() > LONGEST_NAME {
            return Err(Error::invalid(format!(
                "the name of a shared memory region has {} bytes, the limit is {LONGEST_NAME}",
                name.len()
            )));
        }
        if self.table.read().contains_key(name) {
            return Err(taken());
        }
        if self.table.read().len() >= MOST_REGIONS {
            return Err(Error::unavailable(format!(
                "{MOST_REGIONS} shared memory regions are registered already; unregister some"
            )));
        }
        let file = open_object(name, key, bare)?;
        let (offset, length, size) = check_bounds(name, key, offset, length, &file)?;
        let mapping = self.map(&file, size).map_err(|reason| {
            Error::invalid(format!(
                "failed to register shared memory region '{name}': unable to process address space: {reason}"
            ))
        })?;
        let mut table = self.table.write();
        if table.contains_key(name) {
            return Err(taken());
        }
        let registered = Registered {
            address: mapping.address,
            length: mapping.length,
            to_be_pinned: mapping.pinned.lock().is_none(),
        };
        let name: Arc<str> = name.into();
        let owner = Owner::Host(mapping);
        table.insert(name.clone(), Region { name, key: key.into(), offset, length, owner });
        Ok(registered)
    }

    /// Registers memory of a device, at an address that Python opened.
    ///
    /// # Errors
    /// `AlreadyExists` for a taken name. The memory is then retired, as if it had been unregistered.
    pub(crate) fn register_device(
        &self,
        name: &str,
        device: i32,
        address: usize,
        length: usize,
    ) -> Result<()> {
        let memory = Arc::new(DeviceMemory { device, address, length });
        let mut table = self.table.write();
        if table.contains_key(name) {
            return Err(Error::new(
                Kind::AlreadyExists,
                format!("shared memory region '{name}' already in manager"),
            ));
        }
        let name: Arc<str> = name.into();
        let owner = Owner::Device(memory);
        table.insert(name.clone(), Region { name, key: String::new(), offset: 0, length, owner });
        Ok(())
    }

    /// Python tried to page-lock the mapping of this region: it is, or here is why not.
    pub(crate) fn set_pinned(&self, name: &str, outcome: std::result::Result<(), String>) {
        if let Some(Region { owner: Owner::Host(mapping), .. }) = self.table.read().get(name) {
            *mapping.pinned.lock() = Some(outcome);
        }
    }

    fn map(&self, file: &File, size: usize) -> std::result::Result<Arc<Mapping>, String> {
        let about = file.metadata().map_err(|error| error.to_string())?;
        let mut mappings = self.mappings.lock();
        mappings.retain(|_, mapping| mapping.strong_count() > 0);
        let identity = (about.dev(), about.ino());
        if let Some(mapping) = mappings.get(&identity).and_then(Weak::upgrade)
            && mapping.length == size
            && !mapping.poisoned()
        {
            return Ok(mapping);
        }
        let mapping = Arc::new(Mapping::new(file, size, identity)?);
        mappings.insert(identity, Arc::downgrade(&mapping));
        Ok(mapping)
    }

    /// Forgets `name` if it is of the host or of a device, as asked; its memory stays for the leases on it. Unknown names
    /// are fine, as in Triton.
    pub(crate) fn unregister(&self, name: &str, host: bool) -> bool {
        let mut table = self.table.write();
        table.get(name).is_some_and(|region| region.is_host() == host) && table.remove(name).is_some()
    }

    /// Forgets all names of the host, or of devices, and tells how many there were.
    pub(crate) fn unregister_all(&self, host: bool) -> usize {
        let mut table = self.table.write();
        let before = table.len();
        table.retain(|_, region| region.is_host() != host);
        before - table.len()
    }

    /// One region, or all of them sorted by name; of the host or of devices.
    ///
    /// # Errors
    /// `NotFound` for a name that is not registered as such.
    pub(crate) fn status(&self, name: Option<&str>, host: bool) -> Result<Vec<RegionStatus>> {
        let table = self.table.read();
        let mut names = HashMap::new();
        for region in table.values() {
            *names.entry(region.memory()).or_insert(0) += 1;
        }
        let row = |region: &Region| {
            let names = names.get(&region.memory()).copied().unwrap_or(0);
            let (device, unpinned) = match &region.owner {
                Owner::Device(memory) => (Some(memory.device), String::new()),
                Owner::Host(mapping) => (
                    None,
                    match &*mapping.pinned.lock() {
                        Some(Ok(())) => String::new(),
                        Some(Err(reason)) => reason.clone(),
                        None => "this server has no GPU".into(),
                    },
                ),
            };
            RegionStatus {
                name: region.name.to_string(),
                key: region.key.clone(),
                offset: region.offset,
                length: region.length,
                leases: region.holders().saturating_sub(names),
                device,
                unpinned,
            }
        };
        if let Some(name) = name {
            match table.get(name).filter(|region| region.is_host() == host) {
                Some(region) => Ok(vec![row(region)]),
                None => Err(unknown(name)),
            }
        } else {
            let mut rows: Vec<_> =
                table.values().filter(|region| region.is_host() == host).map(row).collect();
            rows.sort_by(|a, b| a.name.cmp(&b.name));
            Ok(rows)
        }
    }

    /// A lease on `length` bytes from `offset` on within region `name`.
    ///
    /// # Errors
    /// `NotFound` for an unknown region, `InvalidArgument` for bytes that it does not have.
    pub(crate) fn lease(&self, name: &str, offset: u64, length: u64) -> Result<Slice> {
        let table = self.table.read();
        let region = table.get(name).ok_or_else(|| unknown(name))?;
        let size = region.length as u64;
        if offset > size || (offset == size && length > 0) {
            return Err(Error::invalid(format!(
                "Invalid offset for shared memory region: '{name}': offset {offset} is not within its {size} bytes"
            )));
        }
        let end = offset.checked_add(length).ok_or_else(|| {
            Error::invalid(format!(
                "Integer overflow detected: offset {offset} + byte size {length} in shared memory region '{name}'"
            ))
        })?;
        if end > size {
            return Err(Error::invalid(format!(
                "Invalid offset + byte size for shared memory region: '{name}': {offset} + {length} is over its {size} bytes"
            )));
        }
        let owner = region.owner.clone();
        let start = match &owner {
            Owner::Host(mapping) => mapping.address,
            Owner::Device(memory) => memory.address,
        };
        let address = start + region.offset + usize::try_from(offset).unwrap_or(usize::MAX);
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let slice = Slice { owner, address, length, region: region.name.clone() };
        slice.check_intact()?;
        Ok(slice)
    }
}

fn unknown(name: &str) -> Error {
    Error::not_found(format!("Unable to find shared memory region: '{name}'"))
}

/// The key without its leading slash.
fn check_key<'a>(name: &str, key: &'a str) -> Result<&'a str> {
    let bare = key.trim_start_matches('/');
    let wrong = |what: &str| {
        Error::invalid(format!("invalid shm key '{key}' for shared memory region '{name}': {what}"))
    };
    if bare.is_empty() {
        return Err(wrong("it names nothing"));
    }
    if bare.contains('/') || bare == "." || bare == ".." {
        return Err(wrong("it must be one name, without directories"));
    }
    if bare.contains('\0') || bare.len() > 254 {
        return Err(wrong("it must be at most 254 bytes without NUL"));
    }
    if bare.starts_with(RESERVED_PREFIX) {
        return Err(wrong(&format!("it contains the reserved prefix '{RESERVED_PREFIX}'")));
    }
    Ok(bare)
}

fn open_object(name: &str, key: &str, bare: &str) -> Result<File> {
    let path = CString::new(format!("/{bare}")).unwrap_or_default();
    // SAFETY: a NUL-terminated path; the descriptor is ours and `File` closes it.
    let opened = unsafe {
        match libc::shm_open(path.as_ptr(), libc::O_RDWR | libc::O_CLOEXEC, 0) {
            descriptor if descriptor >= 0 => Ok(File::from_raw_fd(descriptor)),
            _ => Err(io::Error::last_os_error()),
        }
    };
    opened.map_err(|error| {
        let hint = match error.raw_os_error() {
            Some(libc::ENOENT) => format!(
                "there is no /dev/shm/{bare} here: check the key, and if client and server are in containers, that they share IPC (--ipc=host or one /dev/shm)"
            ),
            Some(libc::EACCES | libc::EPERM) => {
                format!("the server's user may not read and write /dev/shm/{bare}: check its owner and mode")
            }
            _ => format!("check /dev/shm/{bare}"),
        };
        Error::new(
            Kind::Internal,
            format!("Unable to open shared memory region: '{name}' with key '{key}': {error}; {hint}"),
        )
    })
}

/// `(offset, length, size of the object)`, all of them within the object.
fn check_bounds(
    name: &str,
    key: &str,
    offset: u64,
    length: u64,
    file: &File,
) -> Result<(usize, usize, usize)> {
    let wrong = |what: String| {
        Error::invalid(format!("failed to register shared memory region '{name}': invalid args: {what}"))
    };
    let size = file.metadata().map_err(|error| wrong(error.to_string()))?.len();
    if length == 0 {
        return Err(wrong("byte size is 0".into()));
    }
    let end = offset
        .checked_add(length)
        .ok_or_else(|| wrong(format!("offset {offset} + byte size {length} does not fit 64 bits")))?;
    if end > size {
        return Err(wrong(format!(
            "offset {offset} + byte size {length} is over the {size} bytes of '{key}'"
        )));
    }
    let native = |value: u64| usize::try_from(value).map_err(|error| wrong(error.to_string()));
    Ok((native(offset)?, native(length)?, native(size)?))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    struct Object(String);

    impl Object {
        fn new(tag: &str, size: u64) -> Self {
            let key = format!("headrace_unit_{tag}_{}", std::process::id());
            File::create(format!("/dev/shm/{key}")).unwrap().set_len(size).unwrap();
            Self(key)
        }
        fn path(&self) -> String {
            format!("/dev/shm/{}", self.0)
        }
    }

    impl Drop for Object {
        fn drop(&mut self) {
            let _ = fs::remove_file(self.path());
        }
    }

    fn text<T>(result: Result<T>) -> String {
        result.err().expect("an error").message
    }

    #[test]
    fn names_of_one_key_share_a_mapping_and_a_grown_file_gets_a_new_one() {
        let (object, regions) = (Object::new("share", 8192), Regions::default());
        regions.register("a", &object.0, 0, 4096).unwrap();
        regions.register("b", &object.0, 100, 1000).unwrap();
        let (a, b) = (regions.lease("a", 0, 1).unwrap(), regions.lease("b", 0, 1).unwrap());
        assert_eq!(a.address() + 100, b.address());
        File::options().write(true).open(object.path()).unwrap().set_len(1 << 20).unwrap();
        regions.register("c", &object.0, 0, 1 << 20).unwrap();
        assert_eq!(regions.lease("c", 0, 1 << 20).unwrap().len(), 1 << 20);
        assert!(text(regions.register("a", &object.0, 0, 1)).contains("already in manager"));
    }

    #[test]
    fn bounds_are_checked_without_overflow() {
        let (object, regions) = (Object::new("bounds", 4096), Regions::default());
        regions.register("r", &object.0, 96, 4000).unwrap();
        assert!(regions.lease("r", 0, 4000).is_ok());
        assert!(text(regions.lease("r", 4000, 1)).contains("Invalid offset for shared memory region"));
        assert!(text(regions.lease("r", 1, 4000)).contains("Invalid offset + byte size"));
        assert!(text(regions.lease("r", 1, u64::MAX)).contains("Integer overflow detected"));
        assert!(text(regions.register("s", &object.0, u64::MAX, 2)).contains("invalid args"));
        assert!(text(regions.register("s", &object.0, 97, 4000)).contains("invalid args"));
    }

    #[test]
    fn keys_are_one_name() {
        let regions = Regions::default();
        for key in [
            "",
            "/",
            "//",
            "a/b",
            "..",
            "/../x",
            "triton_python_backend_shm_region_1",
            "//triton_python_backend_shm_region_1",
        ] {
            assert!(text(regions.register("r", key, 0, 1)).contains("invalid shm key"), "{key}");
        }
        assert!(
            text(regions.register("r", "/headrace_absent", 0, 1))
                .contains("Unable to open shared memory region")
        );
    }

    #[test]
    fn truncation_poisons_the_mapping_and_the_process_lives() {
        guard_against_truncation();
        let (object, regions) = (Object::new("truncate", 1 << 16), Regions::default());
        regions.register("r", &object.0, 0, 1 << 16).unwrap();
        let slice = regions.lease("r", 0, 1 << 16).unwrap();
        File::options().write(true).open(object.path()).unwrap().set_len(0).unwrap();
        let (bytes, copied) = crate::buffer::Memory::Region(slice.clone()).to_reply().ok().unwrap();
        assert!(copied && bytes.iter().all(|&byte| byte == 0));
        assert!(text(slice.check_intact()).contains("was truncated"));
        File::options().write(true).open(object.path()).unwrap().set_len(1 << 16).unwrap();
        regions.unregister("r", true);
        regions.register("r", &object.0, 0, 1 << 16).unwrap();
        assert!(regions.lease("r", 0, 1 << 16).unwrap().check_intact().is_ok());
    }

    #[test]
    fn page_locked_and_device_memory_is_retired_before_it_ends() {
        let (object, regions) = (Object::new("retire", 4096), Regions::default());
        let host = regions.register("h", &object.0, 0, 4096).unwrap();
        assert!(host.to_be_pinned);
        regions.set_pinned("h", Ok(()));
        regions.register_device("d", 3, 0x7000, 512).unwrap();
        assert_eq!(regions.lease("h", 0, 1).unwrap().place(), Place::Pinned);
        let lease = regions.lease("d", 8, 8).unwrap();
        assert_eq!((lease.place(), lease.address()), (Place::Device(3), 0x7008));
        regions.unregister_all(true);
        regions.unregister_all(false);
        let of = |address| retired().into_iter().find(|row| row.1 == address);
        assert_eq!((of(host.address), of(0x7000)), (Some((None, host.address, 4096)), None));
        drop(lease);
        assert_eq!(of(0x7000), Some((Some(3), 0x7000, 512)));
        bury(0x7000);
        bury(host.address);
        assert_eq!((of(host.address), of(0x7000)), (None, None));
    }

    #[test]
    fn a_lease_outlives_its_name() {
        let (object, regions) = (Object::new("lease", 4096), Regions::default());
        regions.register("r", &object.0, 0, 4096).unwrap();
        let slice = regions.lease("r", 0, 4096).unwrap();
        assert_eq!(regions.status(Some("r"), true).unwrap()[0].leases, 1);
        assert!(
            !regions.unregister("r", false)
                && regions.unregister("r", true)
                && !regions.unregister("r", true)
        );
        crate::buffer::copy_to_region(&[7; 4096], &slice);
        assert!(text(regions.lease("r", 0, 1)).contains("Unable to find shared memory region: 'r'"));
    }
}
