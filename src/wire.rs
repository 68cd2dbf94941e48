//! What both doors share, and the threads that run them.
use std::{
    io,
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    pin::Pin,
    sync::{
        Arc, OnceLock,
        atomic::{
            AtomicBool, AtomicU64,
            Ordering::{AcqRel, Acquire, Release},
        },
    },
    time::Duration,
};

use ::http::HeaderMap;
use flate2::Compression;
use parking_lot::RwLock;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream, UnixListener, UnixStream},
    runtime::{Handle, Runtime},
    sync::{Notify, watch},
};
use tokio_rustls::TlsAcceptor;

use crate::{
    authority::HostLike,
    control::{Control, Door},
    error::{Error, Result},
    gate::Gate,
    grpc, http,
    ledger::Ledger,
    models::Models,
    paced::Paced,
    refusals::Refusals,
    restricted::Restricted,
    shm::Regions,
    stamps::now,
};

/// How much a client may send, and how long it may take.
#[derive(Clone, Copy)]
pub(crate) struct Limits {
    /// Bytes of an HTTP body, and of what it decompresses to.
    pub(crate) http_body: usize,
    /// A pause in the middle of a message or a reply, or for the first words of a gRPC connection.
    pub(crate) pause: Duration,
    /// How long a connection may have no call.
    pub(crate) idle: Duration,
    /// Time between two pings of a gRPC connection, and for the answer to one.
    pub(crate) keepalive: Duration,
    pub(crate) keepalive_timeout: Duration,
    /// How gRPC replies are compressed for clients that accept it; `None`: they are not.
    pub(crate) reply_compression: Option<Compression>,
}

/// Who may register regions and refer to them (`--allow-client-shm`).
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum ClientShm {
    Always,
    Local,
    Never,
}

pub(crate) struct Wire {
    pub(crate) models: Models,
    pub(crate) ledger: Ledger,
    pub(crate) refusals: Refusals,
    pub(crate) regions: Regions,
    pub(crate) gate: Arc<Gate>,
    pub(crate) control: Control,
    pub(crate) client_shm: ClientShm,
    /// What needs a secret; empty until it is said, before the doors open.
    pub(crate) restricted_grpc: OnceLock<Restricted>,
    pub(crate) restricted_http: OnceLock<Restricted>,
    pub(crate) limits: Limits,
    /// Threads for connections with big messages.
    bulk: Handle,
    pub(crate) stall_ns: u64,
    /// Why the server is not ready; `None` when it is.
    unready: RwLock<Option<String>>,
    stopping: AtomicBool,
    connections: AtomicU64,
    /// Turns true when connections shall finish what they have and close.
    goodbye: watch::Sender<bool>,
}

impl Wire {
    pub(crate) fn new(
        gate: Gate,
        limits: Limits,
        client_shm: ClientShm,
        stall: Duration,
        bulk: Handle,
    ) -> Self {
        Self {
            models: Models::default(),
            ledger: Ledger::default(),
            refusals: Refusals::default(),
            regions: Regions::default(),
            gate: Arc::new(gate),
            control: Control::default(),
            client_shm,
            restricted_grpc: OnceLock::new(),
            restricted_http: OnceLock::new(),
            limits,
            bulk,
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
            if let Some((instance, why)) = intake.ailing() {
                return Some(format!("Server not ready: instance '{instance}': {why}"));
            }
            let (_, since) = intake.held();
            let held = now().saturating_sub(since?);
            let (model, version) = (&intake.spec.model, intake.spec.version);
            (held > self.stall_ns).then(|| {
                let seconds = held / 1_000_000_000;
                format!("Server not ready: an instance of model '{model}' version {version} has held a batch for {seconds} s")
            })
        })
    }

    /// # Errors
    /// `Restricted` when this verb needs a secret that the headers do not have.
    pub(crate) fn check_secret(&self, door: Door, verb: &str, headers: &HeaderMap) -> Result<()> {
        let (restricted, what) = match door {
            Door::Grpc => (&self.restricted_grpc, "protocol"),
            Door::Http | Door::Metrics => (&self.restricted_http, "API"),
        };
        let checked = restricted.get().map_or(Ok(()), |restricted| restricted.check(verb, headers, what));
        checked.inspect_err(|error| {
            if verb == "ModelInfer" {
                self.refusals.count(door, error.kind);
            }
        })
    }

    pub(crate) fn connections(&self) -> u64 {
        self.connections.load(Acquire)
    }

    pub(crate) fn say_goodbye(&self) {
        self.goodbye.send_replace(true);
    }

    /// Returns when connections shall end.
    pub(crate) async fn leaving(&self) {
        told(&mut self.goodbye.subscribe()).await;
    }
}

/// Where a door listens: a port, or a socket of the file system.
pub(crate) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, PathBuf),
}

enum Stream {
    Tcp(TcpStream),
    Unix(HostLike<UnixStream>),
}

impl Listener {
    /// Binds `address` now, so that a taken one is an error of the start. `unix:/path` and `unix:///path` are sockets of the
    /// file system, as gRPC writes them; they have no port.
    ///
    /// # Errors
    /// `Unavailable` with the operating system's reason.
    pub(crate) fn bind(runtime: &Runtime, door: Door, address: &str, port: u16) -> Result<Self> {
        let _inside = runtime.enter();
        match address.strip_prefix("unix:") {
            Some(path) => {
                let path = PathBuf::from(path.strip_prefix("//").unwrap_or(path));
                bind_path(&path).map(|listener| Self::Unix(listener, path))
            }
            None => {
                resolve(address).and_then(|ip| runtime.block_on(TcpListener::bind((ip, port)))).map(Self::Tcp)
            }
        }
        .map_err(|error| {
            let place =
                if address.starts_with("unix:") { address.into() } else { format!("{address}:{port}") };
            Error::unavailable(format!("cannot listen on {place} for {}: {error}", door.name()))
        })
    }

    /// 0 for a socket of the file system.
    pub(crate) fn port(&self) -> u16 {
        match self {
            Self::Tcp(listener) => listener.local_addr().map_or(0, |address| address.port()),
            Self::Unix(..) => 0,
        }
    }

    /// The next connection, and whether its peer is on this host.
    async fn accept(&self) -> io::Result<(Stream, bool)> {
        match self {
            Self::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                let local = is_local(&stream, peer);
                let _ = stream.set_nodelay(true);
                Ok((Stream::Tcp(stream), local))
            }
            Self::Unix(listener, _) => {
                let (stream, _) = listener.accept().await?;
                Ok((Stream::Unix(HostLike::new(stream)), true))
            }
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Self::Unix(_, path) = self {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// A socket that a dead server left behind is replaced; one that somebody answers is not.
fn bind_path(path: &Path) -> io::Result<UnixListener> {
    let dead = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
    if std::os::unix::net::UnixStream::connect(path).is_err_and(dead) {
        std::fs::remove_file(path)?;
    }
    UnixListener::bind(path)
}

fn resolve(host: &str) -> io::Result<IpAddr> {
    if let Ok(ip) = host.trim_matches(['[', ']']).parse() {
        return Ok(ip);
    }
    let mut found = std::net::ToSocketAddrs::to_socket_addrs(&(host, 0))?;
    found.next().map(|address| address.ip()).ok_or_else(|| io::Error::other("the name has no address"))
}

/// Accepts connections until goodbye; each one is a task of its own.
pub(crate) async fn accept(wire: Arc<Wire>, door: Door, listener: Listener, tls: Option<TlsAcceptor>) {
    let mut goodbye = wire.goodbye.subscribe();
    loop {
        tokio::select! {
            () = told(&mut goodbye) => return,
            accepted = listener.accept() => match accepted {
                Ok((stream, local)) => {
                    wire.connections.fetch_add(1, AcqRel);
                    match stream {
                        Stream::Tcp(stream) if tls.is_some() => {
                            let tls = tls.clone().expect("just seen");
                            tokio::spawn(secured(wire.clone(), door, tls, stream, local))
                        }
                        Stream::Tcp(stream) => tokio::spawn(converse(wire.clone(), door, stream, local)),
                        Stream::Unix(stream) => tokio::spawn(converse(wire.clone(), door, stream, local)),
                    };
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

/// Shakes hands first; a peer that does not is told nothing.
async fn secured(wire: Arc<Wire>, door: Door, tls: TlsAcceptor, stream: TcpStream, local: bool) {
    match tokio::time::timeout(wire.limits.pause, tls.accept(stream)).await {
        Ok(Ok(stream)) => converse(wire, door, stream, local).await,
        _ => drop(Leave(wire)),
    }
}

async fn converse<S>(wire: Arc<Wire>, door: Door, stream: S, local: bool)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let _leave = Leave(wire.clone());
    let (goodbye, big, bulk) = (wire.goodbye.subscribe(), Arc::new(Notify::new()), wire.bulk.clone());
    let stream = Paced::new(stream, wire.limits.pause, big.clone());
    let mut conversation: Pin<Box<dyn Future<Output = ()> + Send>> = match door {
        Door::Grpc => Box::pin(grpc::serve(wire, stream, local, goodbye)),
        Door::Http | Door::Metrics => Box::pin(http::serve(wire, door, stream, local, goodbye)),
    };
    tokio::select! {
        biased;
        () = &mut conversation => return,
        () = big.notified() => {}
    }
    let _ = bulk.spawn(conversation).await; // an error is a panic there, which costs this connection
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
