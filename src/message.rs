//! One gRPC message each way: the length and the compression in front of it, and how long its peer may pause.
use std::{future::poll_fn, sync::Arc, time::Duration};

use bytes::{Buf, Bytes, BytesMut};
use flate2::Compression;
use h2::{Reason, RecvStream, SendStream, server::SendResponse};
use http::{HeaderMap, HeaderValue, Response, header::CONTENT_TYPE};

use crate::{
    buffer::Buffer,
    compression::{self, Coding},
    error::{Error, Kind, Result},
    gate::{Permit, hold_until_written},
    wire::Wire,
};

/// Largest message; gRPC lengths are 32 bits and protobuf stops at 2 GiB.
pub(crate) const MAX_MESSAGE: usize = i32::MAX as usize;
const ENCODING: &str = "grpc-encoding";
const ACCEPT_ENCODING: &str = "grpc-accept-encoding";
/// The codings that messages may come in.
const ACCEPTED: HeaderValue = HeaderValue::from_static("identity, deflate, gzip");

/// The message of a unary call, decompressed: a slice of its frame, or assembled by one copy where it spans several.
///
/// # Errors
/// `InvalidArgument` for one that is over `limit`, ends early or pauses for too long, `Unsupported` for a coding that is not
/// known, `Internal` for one that was not named, `Unavailable` where no permit is to be had.
pub(crate) async fn read(
    headers: &HeaderMap,
    body: &mut RecvStream,
    wire: &Wire,
    limit: usize,
) -> Result<(Bytes, Arc<Permit>)> {
    let pause = wire.limits.pause;
    let mut start = BytesMut::new();
    let mut chunk = next_chunk(body, pause).await?;
    while start.len() + chunk.len() < 5 {
        start.extend_from_slice(&chunk);
        chunk = next_chunk(body, pause).await?;
    }
    if !start.is_empty() {
        start.extend_from_slice(&chunk);
        chunk = start.freeze();
    }
    let coding = match chunk.get_u8() {
        0 => None,
        1 => Some(coding(headers)?),
        other => {
            return Err(Error::invalid(format!(
                "a message starts with 0 or 1, whether it is compressed, not {other}"
            )));
        }
    };
    let length = chunk.get_u32() as usize;
    if length > limit {
        return Err(Error::invalid(format!("message of {length} bytes is over the limit of {limit}")));
    }
    wire.gate.check_announced(length)?;
    let permit = wire.gate.enter()?;
    let message = assemble(body, chunk, length, &permit, pause).await?;
    match coding {
        None => Ok((message, permit)),
        Some(coding) => compression::unpack(coding, message, limit, permit).await,
    }
}

async fn assemble(
    body: &mut RecvStream,
    mut chunk: Bytes,
    length: usize,
    permit: &Permit,
    pause: Duration,
) -> Result<Bytes> {
    if chunk.len() == length {
        permit.grow(length)?;
        return Ok(chunk);
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
            return Ok(message.freeze());
        }
        chunk = next_chunk(body, pause).await?;
    }
}

/// The coding of a message that says it is compressed.
fn coding(headers: &HeaderMap) -> Result<Coding> {
    let name = headers.get(ENCODING).and_then(|value| value.to_str().ok()).unwrap_or("identity");
    match Coding::from_name(name) {
        Some(coding) => Ok(coding),
        None if name == "identity" => {
            Err(Error::new(Kind::Internal, "the message is compressed, but no grpc-encoding says how"))
        }
        None => {
            Err(Error::unsupported(format!("grpc-encoding '{name}' is not served; expected gzip or deflate")))
        }
    }
}

async fn next_chunk(body: &mut RecvStream, pause: Duration) -> Result<Bytes> {
    let next = tokio::time::timeout(pause, poll_fn(|context| body.poll_data(context)));
    match next
        .await
        .map_err(|_| Error::invalid(format!("the message did not go on for {} s", pause.as_secs_f32())))?
    {
        Some(Ok(chunk)) => {
            let _ = body.flow_control().release_capacity(chunk.len());
            Ok(chunk)
        }
        Some(Err(error)) => Err(Error::invalid(format!("the call ended within its message: {error}"))),
        None => Err(Error::invalid("the call ended within its message")),
    }
}

/// A message with its length in front.
pub(crate) fn prefixed(message: &[u8]) -> Bytes {
    let mut bytes = BytesMut::with_capacity(5 + message.len());
    bytes.extend_from_slice(&prefix(false, message.len()));
    bytes.extend_from_slice(message);
    bytes.freeze()
}

fn prefix(compressed: bool, length: usize) -> [u8; 5] {
    let [a, b, c, d] = u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes();
    [u8::from(compressed), a, b, c, d]
}

/// A reply: its message, prefixed, in pieces, and what it is booked on.
pub(crate) struct Outgoing {
    pub(crate) pieces: Vec<Bytes>,
    pub(crate) permit: Option<Arc<Permit>>,
    pub(crate) coding: Option<Coding>,
}

impl Outgoing {
    /// A reply of some bytes that nothing needs to be booked for.
    pub(crate) fn small(message: &[u8]) -> Self {
        Self { pieces: vec![prefixed(message)], permit: None, coding: None }
    }

    /// Booked until it is written.
    fn held(mut self) -> Result<Self> {
        if let Some(permit) = self.permit.take() {
            hold_until_written(permit, &mut self.pieces)?;
        }
        Ok(self)
    }

    /// The message compressed, if the client understands that.
    ///
    /// # Errors
    /// As `compression::pack`.
    pub(crate) async fn compressed(mut self, headers: &HeaderMap, level: Compression) -> Result<Self> {
        let Some(coding) = compression::preferred(headers, ACCEPT_ENCODING) else { return Ok(self) };
        if let Some(first) = self.pieces.first_mut() {
            first.advance(5);
        }
        let packed = compression::pack(coding, level, self.pieces).await?;
        let head = Bytes::copy_from_slice(&prefix(true, packed.len()));
        Ok(Self { pieces: vec![head, packed], coding: Some(coding), ..self })
    }
}

/// Sends a reply as its client takes it, or an error. Sending fails only when the client is gone, and then nobody is left to
/// tell.
pub(crate) async fn send(respond: &mut SendResponse<Bytes>, outcome: Result<Outgoing>, pause: Duration) {
    let mut response = Response::new(());
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    match outcome.and_then(Outgoing::held) {
        Err(error) => {
            if error.kind == Kind::Unsupported {
                headers.insert(ACCEPT_ENCODING, ACCEPTED);
            }
            headers.extend(trailers(error.kind.grpc(), &error.message));
            let _ = respond.send_response(response, true);
        }
        Ok(Outgoing { pieces, coding, .. }) => {
            if let Some(coding) = coding {
                headers.insert(ENCODING, HeaderValue::from_static(coding.name()));
            }
            let Ok(mut stream) = respond.send_response(response, false) else { return };
            for piece in pieces {
                if send_piece(&mut stream, piece, pause).await.is_none() {
                    return stream.send_reset(Reason::CANCEL);
                }
            }
            let _ = stream.send_trailers(trailers(0, ""));
        }
    }
}

/// Hands on as much as the client's window lets; `None` when it does not open it, or is gone.
pub(crate) async fn send_piece(
    stream: &mut SendStream<Bytes>,
    mut piece: Bytes,
    pause: Duration,
) -> Option<()> {
    while !piece.is_empty() {
        stream.reserve_capacity(piece.len());
        while stream.capacity() == 0 {
            let more = tokio::time::timeout(pause, poll_fn(|context| stream.poll_capacity(context)));
            more.await.ok()??.ok()?;
        }
        let part = piece.split_to(stream.capacity().min(piece.len()));
        stream.send_data(part, false).ok()?;
    }
    Some(())
}

/// The end of a call.
pub(crate) fn trailers(status: u8, message: &str) -> HeaderMap {
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
