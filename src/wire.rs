//! What both doors share, and the threads that run them.
use std::{
    net::{IpAddr, SocketAddr},
    sync::{
        Arc,
        atomic::{
            AtomicBool, AtomicU64,
            Ordering::{AcqRel, Acquire, Release},
        },
    },
    time::Duration,
};

use parking_lot::RwLock;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
};

use crate::{
    control::{Control, Door},
    error::{Error, Kind, Result},
    gate::Gate,
    grpc, http,
    models::Models,
    shm::Regions,
    stamps::now,
};

/// How long a client may pause in the middle of a message, or take for its first words.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Who may register regions and refer to them (`--allow-client-shm`).
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum ClientShm {
    Always,
    Local,
    Never,
}

pub(crate) struct Wire {
    pub(crate) models: Models,
    pub(crate) regions: Regions,
    pub(crate) gate: Arc<Gate>,
    pub(crate) control: Control,
    pub(crate) client_shm: ClientShm,
    pub(crate) stall_ns: u64,
    /// Why the server is not ready; `None` when it is.
    unready: RwLock<Option<String>>,
    stopping: AtomicBool,
    connections: AtomicU64,
    /// Turns true when connections shall finish what they have and close.
    goodbye: watch::Sender<bool>,
}

impl Wire {
    pub(crate) fn new(gate: Gate, client_shm: ClientShm, stall: Duration) -> Self {
        Self {
            models: Models::default(),
            regions: Regions::default(),
            gate: Arc::new(gate),
            control: Control::default(),
            client_shm,
            stall_ns: u64::try_from(stall.as_nanos()).unwrap_or(u64::MAX),
            unready: RwLock::new(Some("models are loading".into())),
            stopping: AtomicBool::new(false),
            connections: AtomicU64::new(0),
            goodbye: watch::Sender::new(false),
        }
    }

    /// `None`: ready.
    pub(crate) fn set_unready(&self, reason: Option<String>) {
        *self.unready.write() = reason;
    }

    pub(crate) fn stopping(&self) -> bool {
        self.stopping.load(Acquire)
    }

    /// New requests are refused from now on; those in flight go on.
    pub(crate) fn begin_stop(&self) {
        self.set_unready(Some("it is stopping".into()));
        self.stopping.store(true, Release);
    }

    /// Why the server is not ready, if so; the text names the model where one is to blame.
    pub(crate) fn unready(&self) -> Option<String> {
        if let Some(reason) = &*self.unready.read() {
            return Some(format!("Server not ready: {reason}"));
        }
        if self.control.stuck() {
            return Some("Server not ready: its control loop is stuck".into());
        }
        self.models.serving().iter().find_map(|intake| {
            let (_, since) = intake.held();
            let held = now().saturating_sub(since?);
            let (model, version) = (&intake.spec.model, intake.spec.version);
            (held > self.stall_ns).then(|| {
                let seconds = held / 1_000_000_000;
                format!("Server not ready: an instance of model '{model}' version {version} has held a batch for {seconds} s")
            })
        })
    }

    pub(crate) fn connections(&self) -> u64 {
        self.connections.load(Acquire)
    }

    pub(crate) fn say_goodbye(&self) {
        self.goodbye.send_replace(true);
    }
}

/// Binds `address` now, so that a taken port is an error of the start.
///
/// # Errors
/// `Unavailable` with the operating system's reason.
pub(crate) fn bind(
    runtime: &tokio::runtime::Runtime,
    door: Door,
    address: &str,
    port: u16,
) -> Result<TcpListener> {
    let failed = |error: &dyn std::fmt::Display| {
        Error::new(
            Kind::Unavailable,
            format!("cannot listen on {address}:{port} for {}: {error}", door.name()),
        )
    };
    let ip: IpAddr = address
        .trim_matches(['[', ']'])
        .parse()
        .or_else(|_| resolve(address))
        .map_err(|error| failed(&error))?;
    runtime.block_on(TcpListener::bind((ip, port))).map_err(|error| failed(&error))
}

fn resolve(host: &str) -> std::io::Result<IpAddr> {
    let mut found = std::net::ToSocketAddrs::to_socket_addrs(&(host, 0))?;
    found.next().map(|address| address.ip()).ok_or_else(|| std::io::Error::other("the name has no address"))
}

/// Accepts connections until goodbye; each one is a task of its own.
pub(crate) async fn accept(wire: Arc<Wire>, door: Door, listener: TcpListener) {
    let mut goodbye = wire.goodbye.subscribe();
    loop {
        tokio::select! {
            () = told(&mut goodbye) => return,
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) => {
                    wire.connections.fetch_add(1, AcqRel);
                    tokio::spawn(converse(wire.clone(), door, stream, peer));
                }
                // Out of descriptors, most likely: let some connections end.
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            },
        }
    }
}

/// Returns when connections shall end.
pub(crate) async fn told(goodbye: &mut watch::Receiver<bool>) {
    let _ = goodbye.wait_for(|&said| said).await;
}

async fn converse(wire: Arc<Wire>, door: Door, stream: TcpStream, peer: SocketAddr) {
    let _leave = Leave(wire.clone());
    let local = is_local(&stream, peer);
    let _ = stream.set_nodelay(true);
    let goodbye = wire.goodbye.subscribe();
    match door {
        Door::Grpc => grpc::serve(wire, stream, local, goodbye).await,
        Door::Http | Door::Metrics => http::serve(wire, door, stream, local, goodbye).await,
    }
}

/// The peer is on this host: loopback, or one of the host's own addresses at both ends.
fn is_local(stream: &TcpStream, peer: SocketAddr) -> bool {
    let here = stream.local_addr().map(|address| address.ip().to_canonical());
    let peer = peer.ip().to_canonical();
    peer.is_loopback() || here.is_ok_and(|here| here == peer)
}

/// Counts a connection out, however its task ends.
struct Leave(Arc<Wire>);

impl Drop for Leave {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, AcqRel);
    }
}

/// Threads for the doors: one for every 16 cores, at most four. One thread carries over 30,000 requests/s, and the more of
/// its connections a thread polls at once the less each request costs (68 us of CPU with four threads, 53 us with one).
pub(crate) fn default_threads() -> usize {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    (cores / 16).clamp(1, 4)
}
