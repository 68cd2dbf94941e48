//! The gRPC door, on bare HTTP/2: a fifth to a third less CPU for a small request than a gRPC framework.
//!
//! One task a connection polls all its calls. Requests that became complete in one poll are rung for together, so that a
//! burst wakes an instance once and shares a batch.
use std::{
    future::{Future, poll_fn},
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use futures_util::{Stream, stream::FuturesUnordered};
use h2::{
    Ping, PingPong, RecvStream,
    server::{Connection, SendResponse},
};
use http::{HeaderMap, Request};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::{oneshot, watch},
    time::{Instant, Sleep, sleep},
};

use crate::{
    bounds,
    control::{Call, Door, MAX_CONTROL_BODY, Subject},
    error::{Error, Result},
    health,
    message::{self, MAX_MESSAGE, Outgoing},
    pending::Intake,
    proto,
    request::{Ticket, admit},
    stamps::now,
    wire::{Limits, Wire, told},
};

const SERVICE: &str = "/inference.GRPCInferenceService/";
/// Flow-control windows: a message of some megabytes must not wait for window updates.
const STREAM_WINDOW: u32 = 16 << 20;
const CONNECTION_WINDOW: u32 = 256 << 20;
const MAX_FRAME: u32 = 1 << 20;
/// Bytes of replies that wait in a call for the connection; a large one goes on when some of it is written.
const SEND_BUFFER: usize = 16 << 20;
/// Calls that one connection may have open; more wait at the client.
const MAX_STREAMS: u32 = 16_384;
/// Resets that a client may cause before it counts as hostile: cancelling many calls at once is fair use.
const MAX_RESETS: usize = 4096;

/// RPCs that Python answers.
const CONTROL_VERBS: [&str; 16] = [
    "ModelReady",
    "ServerMetadata",
    "ModelMetadata",
    "ModelConfig",
    "ModelStatistics",
    "RepositoryIndex",
    "RepositoryModelLoad",
    "RepositoryModelUnload",
    "SystemSharedMemoryStatus",
    "SystemSharedMemoryRegister",
    "SystemSharedMemoryUnregister",
    "CudaSharedMemoryStatus",
    "CudaSharedMemoryRegister",
    "CudaSharedMemoryUnregister",
    "TraceSetting",
    "LogSettings",
];

/// Intakes that got requests in this poll of the connection.
type Bells = Arc<Mutex<Vec<Arc<Intake>>>>;
type CallFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

pub(crate) async fn serve<S: AsyncRead + AsyncWrite + Unpin>(
    wire: Arc<Wire>,
    stream: S,
    local: bool,
    mut goodbye: watch::Receiver<bool>,
) {
    let Limits { pause, idle, keepalive, keepalive_timeout, .. } = wire.limits;
    let mut builder = h2::server::Builder::new();
    builder
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_frame_size(MAX_FRAME)
        .max_header_list_size(16 << 10)
        .max_send_buffer_size(SEND_BUFFER)
        .max_concurrent_streams(MAX_STREAMS)
        .max_pending_accept_reset_streams(MAX_RESETS)
        .max_local_error_reset_streams(Some(MAX_RESETS));
    let Ok(Ok(mut connection)) = tokio::time::timeout(pause, builder.handshake(stream)).await else {
        return;
    };
    let mut gone = pin!(until_gone(connection.ping_pong(), keepalive, keepalive_timeout));
    let mut leaving = pin!(told(&mut goodbye));
    let mut quiet = Quiet::new(idle);
    let (mut calls, bells, mut left) = (FuturesUnordered::<CallFuture>::new(), Bells::default(), false);
    poll_fn(|context| {
        if !left && (leaving.as_mut().poll(context).is_ready() || quiet.poll(context).is_ready()) {
            left = true;
            connection.graceful_shutdown();
            quiet = Quiet::new(pause);
        }
        let ended = poll_calls(&mut connection, &mut calls, context, |request, respond| {
            Box::pin(answer(wire.clone(), request, respond, local, bells.clone()))
        });
        bells.lock().drain(..).for_each(|intake| intake.ring());
        quiet.note(!calls.is_empty());
        let over =
            ended || gone.as_mut().poll(context).is_ready() || (left && quiet.poll(context).is_ready());
        if over { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

/// Returns when the peer does not answer a ping any more: its host is gone, and nothing else would tell.
async fn until_gone(pings: Option<PingPong>, every: Duration, patience: Duration) {
    let Some(mut pings) = pings else { return std::future::pending().await };
    loop {
        tokio::time::sleep(every).await;
        if !matches!(tokio::time::timeout(patience, pings.ping(Ping::opaque())).await, Ok(Ok(_))) {
            return;
        }
    }
}

/// Tells when a connection has had no call for a whole period; periods follow one another, so that a call costs a flag.
struct Quiet {
    period: Duration,
    end: Pin<Box<Sleep>>,
    /// There is a call now.
    busy: bool,
    /// There was one in this period.
    used: bool,
}

impl Quiet {
    fn new(period: Duration) -> Self {
        Self { period, end: Box::pin(sleep(period)), busy: false, used: false }
    }

    fn note(&mut self, busy: bool) {
        self.used |= busy || self.busy;
        self.busy = busy;
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        while self.end.as_mut().poll(context).is_ready() {
            if !self.used && !self.busy {
                return Poll::Ready(());
            }
            self.used = false;
            self.end.as_mut().reset(Instant::now() + self.period);
        }
        Poll::Pending
    }
}

/// Polls calls and connection in turn until neither moves; true when the connection ended.
fn poll_calls<S: AsyncRead + AsyncWrite + Unpin>(
    connection: &mut Connection<S, Bytes>,
    calls: &mut FuturesUnordered<CallFuture>,
    context: &mut Context<'_>,
    start: impl Fn(Request<RecvStream>, SendResponse<Bytes>) -> CallFuture,
) -> bool {
    loop {
        while let Poll::Ready(Some(())) = Pin::new(&mut *calls).poll_next(context) {}
        match connection.poll_accept(context) {
            Poll::Ready(Some(Ok((request, respond)))) => calls.push(start(request, respond)),
            Poll::Ready(Some(Err(_)) | None) => return true,
            Poll::Pending => return false,
        }
    }
}

/// Answers one call. When the client resets it, the future just ends and drops what it held.
async fn answer(
    wire: Arc<Wire>,
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
    local: bool,
    bells: Bells,
) {
    let (head, mut body) = request.into_parts();
    if let Some(verb) = head.uri.path().strip_prefix(health::SERVICE) {
        if let Err(error) = wire.check_secret(Door::Grpc, "ServerReady", &head.headers) {
            return message::send(&mut respond, Err(error), wire.limits.pause).await;
        }
        return health::answer(&wire, verb, &head.headers, &mut body, &mut respond).await;
    }
    let verb = head.uri.path().strip_prefix(SERVICE).unwrap_or_default();
    if let Err(error) = wire.check_secret(Door::Grpc, verb, &head.headers) {
        return message::send(&mut respond, Err(error), wire.limits.pause).await;
    }
    let outcome = match verb {
        "ModelInfer" => match infer(&wire, &head.headers, &mut body, &mut respond, local, &bells).await {
            Some(outcome) => outcome,
            None => return,
        },
        "ServerLive" => Ok(boolean(true)),
        "ServerReady" => Ok(boolean(wire.unready().is_none())),
        _ => match CONTROL_VERBS.iter().find(|known| **known == verb) {
            Some(known) => control(&wire, known, &head.headers, &mut body, local).await,
            None => Err(Error::unsupported(format!("{} is not served", head.uri.path()))),
        },
    };
    message::send(&mut respond, outcome, wire.limits.pause).await;
}

/// The reply; `None` when the client does not want it any more.
async fn infer(
    wire: &Wire,
    headers: &HeaderMap,
    body: &mut RecvStream,
    respond: &mut SendResponse<Bytes>,
    local: bool,
    bells: &Bells,
) -> Option<Result<Outgoing>> {
    let mut ticket = match receive(wire, headers, body, local).await {
        Ok(ticket) => ticket,
        Err(error) => {
            wire.refusals.count(Door::Grpc, error.kind);
            return Some(Err(error));
        }
    };
    {
        let mut bells = bells.lock();
        if bells.iter().all(|intake| !Arc::ptr_eq(intake, ticket.intake())) {
            bells.push(ticket.intake().clone());
        }
    }
    let reply = poll_fn(|context| match ticket.poll(context) {
        Poll::Ready(reply) => Poll::Ready(Some(reply)),
        Poll::Pending => respond.poll_reset(context).map(|_| None),
    })
    .await?;
    let settled = reply.as_ref().map_or(0, |reply| reply.settled);
    let reply = match reply {
        Ok(reply) => Outgoing { pieces: proto::encode(reply), permit: Some(ticket.permit()), coding: None },
        Err(error) => return Some(Err(error)),
    };
    let reply = match wire.limits.reply_compression {
        None => Ok(reply),
        Some(level) => reply.compressed(headers, level).await,
    };
    ticket.intake().encoded(settled);
    Some(reply)
}

async fn receive(wire: &Wire, headers: &HeaderMap, body: &mut RecvStream, local: bool) -> Result<Ticket> {
    let (message, permit) = message::read(headers, body, wire, MAX_MESSAGE).await?;
    let arrived = now();
    permit.grow(bounds::check_message(&message)?)?;
    admit(wire, proto::decode(message)?, local, permit, arrived)
}

async fn control(
    wire: &Wire,
    verb: &'static str,
    headers: &HeaderMap,
    body: &mut RecvStream,
    local: bool,
) -> Result<Outgoing> {
    let (payload, permit) = message::read(headers, body, wire, MAX_CONTROL_BODY).await?;
    let (answer, reply) = oneshot::channel();
    wire.control.push(Call {
        door: Door::Grpc,
        verb,
        subject: Subject::default(),
        payload,
        local,
        answer,
    })?;
    let reply = reply.await.unwrap_or_else(|_| Err(Error::unavailable("Server is stopping")))?;
    Ok(Outgoing { permit: Some(permit), ..Outgoing::small(&reply) })
}

fn boolean(value: bool) -> Outgoing {
    Outgoing::small(if value { &[0x08, 0x01] } else { &[] })
}
