//! The gRPC door, on bare HTTP/2: a fifth to a third less CPU for a small request than a gRPC framework.
//!
//! One task a connection polls all its calls. Requests that became complete in one poll are rung for together, so that a
//! burst wakes an instance once and shares a batch.
use std::{
    future::{Future, poll_fn},
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll},
};

use bytes::{Buf, Bytes, BytesMut};
use futures_util::{Stream, stream::FuturesUnordered};
use h2::{
    Reason, RecvStream,
    server::{Connection, SendResponse},
};
use http::{HeaderMap, HeaderValue, Request, Response};
use parking_lot::Mutex;
use tokio::{
    net::TcpStream,
    sync::{oneshot, watch},
};

use crate::{
    buffer::Buffer,
    control::{Call, Door, MAX_CONTROL_BODY, Subject},
    error::{Error, Result},
    gate::Permit,
    pending::Intake,
    proto,
    request::{Ticket, admit},
    wire::{PATIENCE, Wire, told},
};

const SERVICE: &str = "/inference.GRPCInferenceService/";
/// Flow-control windows: a message of some megabytes must not wait for window updates.
const STREAM_WINDOW: u32 = 16 << 20;
const CONNECTION_WINDOW: u32 = 256 << 20;
const MAX_FRAME: u32 = 1 << 20;
/// Largest message; gRPC lengths are 32 bits and protobuf stops at 2 GiB.
const MAX_MESSAGE: usize = i32::MAX as usize;
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

pub(crate) async fn serve(
    wire: Arc<Wire>,
    stream: TcpStream,
    local: bool,
    mut goodbye: watch::Receiver<bool>,
) {
    let mut builder = h2::server::Builder::new();
    builder
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_frame_size(MAX_FRAME)
        .max_header_list_size(16 << 10)
        .max_concurrent_streams(MAX_STREAMS)
        .max_pending_accept_reset_streams(MAX_RESETS)
        .max_local_error_reset_streams(Some(MAX_RESETS));
    let Ok(Ok(mut connection)) = tokio::time::timeout(PATIENCE, builder.handshake(stream)).await else {
        return;
    };
    let mut leaving = pin!(told(&mut goodbye));
    let (mut calls, bells, mut left) = (FuturesUnordered::<CallFuture>::new(), Bells::default(), false);
    poll_fn(|context| {
        if !left && leaving.as_mut().poll(context).is_ready() {
            left = true;
            connection.graceful_shutdown();
        }
        let ended = poll_calls(&mut connection, &mut calls, context, |request, respond| {
            Box::pin(answer(wire.clone(), request, respond, local, bells.clone()))
        });
        bells.lock().drain(..).for_each(|intake| intake.ring());
        if ended { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

/// Polls calls and connection in turn until neither moves; true when the connection ended.
fn poll_calls(
    connection: &mut Connection<TcpStream, Bytes>,
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
    let verb = head.uri.path().strip_prefix(SERVICE).unwrap_or_default();
    let outcome = match verb {
        "ModelInfer" => match infer(&wire, &mut body, &mut respond, local, &bells).await {
            Some(outcome) => outcome,
            None => return,
        },
        "ServerLive" => Ok(boolean(true)),
        "ServerReady" => Ok(boolean(wire.unready().is_none())),
        _ => match CONTROL_VERBS.iter().find(|known| **known == verb) {
            Some(known) => control(&wire, known, &mut body, local).await.map(|reply| vec![prefixed(&reply)]),
            None => Err(Error::unsupported(format!("{} is not served", head.uri.path()))),
        },
    };
    send(&mut respond, outcome);
}

/// The pieces of the reply; `None` when the client does not want it any more.
async fn infer(
    wire: &Wire,
    body: &mut RecvStream,
    respond: &mut SendResponse<Bytes>,
    local: bool,
    bells: &Bells,
) -> Option<Result<Vec<Bytes>>> {
    let mut ticket = match receive(wire, body, local).await {
        Ok(ticket) => ticket,
        Err(error) => return Some(Err(error)),
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
    Some(reply.map(proto::encode))
}

async fn receive(wire: &Wire, body: &mut RecvStream, local: bool) -> Result<Ticket> {
    let (message, permit) = read_message(body, wire, MAX_MESSAGE).await?;
    admit(wire, proto::decode(message)?, local, permit)
}

async fn control(wire: &Wire, verb: &'static str, body: &mut RecvStream, local: bool) -> Result<Bytes> {
    let (payload, _permit) = read_message(body, wire, MAX_CONTROL_BODY).await?;
    let (answer, reply) = oneshot::channel();
    wire.control.push(Call {
        door: Door::Grpc,
        verb,
        subject: Subject::default(),
        payload,
        local,
        answer,
    })?;
    reply.await.unwrap_or_else(|_| Err(Error::unavailable("Server is stopping")))
}

/// The one message of a unary call: a slice of its frame, or assembled by one copy where it spans several.
async fn read_message(body: &mut RecvStream, wire: &Wire, limit: usize) -> Result<(Bytes, Permit)> {
    let mut start = BytesMut::new();
    let mut chunk = next_chunk(body).await?;
    while start.len() + chunk.len() < 5 {
        start.extend_from_slice(&chunk);
        chunk = next_chunk(body).await?;
    }
    if !start.is_empty() {
        start.extend_from_slice(&chunk);
        chunk = start.freeze();
    }
    if chunk.get_u8() != 0 {
        return Err(Error::unsupported("compressed gRPC messages are not served yet"));
    }
    let length = chunk.get_u32() as usize;
    if length > limit {
        return Err(Error::invalid(format!("message of {length} bytes is over the limit of {limit}")));
    }
    wire.gate.check_announced(length)?;
    let mut permit = wire.gate.enter()?;
    if chunk.len() == length {
        permit.grow(length)?;
        return Ok((chunk, permit));
    }
    let mut message = Buffer::ending_aligned(length)?;
    let mut at = 0;
    loop {
        permit.grow(chunk.len())?;
        if chunk.len() > length - at {
            return Err(Error::invalid(format!("a message said to have {length} bytes goes on after them")));
        }
        message.write(at, &chunk);
        at += chunk.len();
        if at == length {
            return Ok((message.freeze(), permit));
        }
        chunk = next_chunk(body).await?;
    }
}

async fn next_chunk(body: &mut RecvStream) -> Result<Bytes> {
    let next = tokio::time::timeout(PATIENCE, poll_fn(|context| body.poll_data(context)));
    match next.await.map_err(|_| Error::invalid("the message did not go on for 30 s"))? {
        Some(Ok(chunk)) => {
            let _ = body.flow_control().release_capacity(chunk.len());
            Ok(chunk)
        }
        Some(Err(error)) => Err(Error::invalid(format!("the call ended within its message: {error}"))),
        None => Err(Error::invalid("the call ended within its message")),
    }
}

fn boolean(value: bool) -> Vec<Bytes> {
    vec![prefixed(if value { &[0x08, 0x01] } else { &[] })]
}

fn prefixed(message: &[u8]) -> Bytes {
    let mut bytes = BytesMut::with_capacity(5 + message.len());
    bytes.extend_from_slice(&[0]);
    bytes.extend_from_slice(&u32::try_from(message.len()).unwrap_or(u32::MAX).to_be_bytes());
    bytes.extend_from_slice(message);
    bytes.freeze()
}

/// Sending fails only when the client is gone, and then nobody is left to tell.
fn send(respond: &mut SendResponse<Bytes>, outcome: Result<Vec<Bytes>>) {
    let mut response = Response::new(());
    response.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
    match outcome {
        Err(error) => {
            response.headers_mut().extend(trailers(error.kind.grpc(), &error.message));
            let _ = respond.send_response(response, true);
        }
        Ok(pieces) => {
            let Ok(mut stream) = respond.send_response(response, false) else { return };
            if pieces.into_iter().all(|piece| stream.send_data(piece, false).is_ok()) {
                let _ = stream.send_trailers(trailers(0, ""));
            } else {
                stream.send_reset(Reason::INTERNAL_ERROR);
            }
        }
    }
}

fn trailers(status: u8, message: &str) -> HeaderMap {
    let mut map = HeaderMap::with_capacity(2);
    map.insert("grpc-status", HeaderValue::from(u16::from(status)));
    if !message.is_empty()
        && let Ok(value) = HeaderValue::from_str(&percent_encode(message))
    {
        map.insert("grpc-message", value);
    }
    map
}

/// As the gRPC specification wants `grpc-message`: printable ASCII but for `%`. Long texts are cut: headers have a limit.
fn percent_encode(message: &str) -> String {
    const LONGEST: usize = 4096;
    let mut encoded = String::with_capacity(message.len());
    for byte in message.bytes().take(LONGEST) {
        match byte {
            b' '..=b'~' if byte != b'%' => encoded.push(char::from(byte)),
            _ => {
                encoded.push('%');
                encoded.extend(
                    [byte >> 4, byte & 15].map(|digit| char::from(b"0123456789ABCDEF"[usize::from(digit)])),
                );
            }
        }
    }
    encoded
}
