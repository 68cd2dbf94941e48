//! The HTTP door, and the metrics page on a port of its own.
use std::{
    collections::VecDeque,
    convert::Infallible,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use flate2::Compression;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::{oneshot, watch},
};

use crate::{
    binary::{self, Formats},
    buffer::Buffer,
    compression::{self, Coding},
    control::{Call, Door, MAX_CONTROL_BODY, Subject},
    error::{Error, Result},
    gate::{Permit, hold_until_written},
    request::{Ticket, admit},
    stamps::now,
    wire::{Wire, told},
};

const JSON_LENGTH: &str = "inference-header-content-length";

pub(crate) async fn serve<S: AsyncRead + AsyncWrite + Unpin>(
    wire: Arc<Wire>,
    door: Door,
    stream: S,
    local: bool,
    mut goodbye: watch::Receiver<bool>,
) {
    let service = service_fn(|request| {
        let wire = wire.clone();
        async move { Ok::<_, Infallible>(answer(&wire, door, local, request).await) }
    });
    let mut builder = http1::Builder::new();
    // A client that takes its time for the head of a request costs what an idle one costs.
    builder.timer(TokioTimer::new()).header_read_timeout(wire.limits.idle).half_close(false);
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
    tokio::select! {
        _ = connection.as_mut() => return,
        () = told(&mut goodbye) => connection.as_mut().graceful_shutdown(),
    }
    let _ = connection.await;
}

async fn answer(wire: &Wire, door: Door, local: bool, request: Request<Incoming>) -> Response<Pieces> {
    let (head, body) = request.into_parts();
    let route = match route(door, &head.method, head.uri.path()) {
        Ok(route) => route,
        Err(status) => return refusal(status, status.canonical_reason().unwrap_or_default()),
    };
    if let Err(error) = wire.check_secret(door, route.verb(), &head.headers) {
        return refused(&error);
    }
    let outcome = match route {
        Route::Live => return empty(),
        Route::Ready => {
            return wire.unready().map_or_else(empty, |reason| refusal(StatusCode::BAD_REQUEST, &reason));
        }
        Route::Infer(subject) => infer(wire, &subject, local, &head.headers, body).await,
        Route::Control(verb, subject) => control(wire, door, verb, subject, local, &head.headers, body).await,
    };
    outcome.unwrap_or_else(|error| {
        let mut response = refused(&error);
        if head.headers.contains_key(header::CONTENT_ENCODING) {
            response.headers_mut().insert(header::ACCEPT_ENCODING, HeaderValue::from_static("gzip, deflate"));
        }
        response
    })
}

fn refused(error: &Error) -> Response<Pieces> {
    let status = StatusCode::from_u16(error.kind.http()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    refusal(status, &error.message)
}

#[derive(Debug, PartialEq)]
enum Route {
    Live,
    Ready,
    Infer(Subject),
    Control(&'static str, Subject),
}

impl Route {
    /// The name of the RPC that does the same.
    fn verb(&self) -> &'static str {
        match self {
            Self::Live => "ServerLive",
            Self::Ready => "ServerReady",
            Self::Infer(_) => "ModelInfer",
            Self::Control(verb, _) => verb,
        }
    }
}

/// Where a path leads; 404 for one that is unknown, 405 for the wrong method.
fn route(door: Door, method: &Method, path: &str) -> std::result::Result<Route, StatusCode> {
    let decoded = percent_decode(path).ok_or(StatusCode::NOT_FOUND)?;
    let parts: Vec<&str> = decoded.split('/').skip(1).collect();
    if door == Door::Metrics {
        let metrics = parts == ["metrics"] || parts == ["metrics", ""];
        return if metrics {
            allow(method, &Method::GET, control_of("Metrics"))
        } else {
            Err(StatusCode::NOT_FOUND)
        };
    }
    let [first, rest @ ..] = parts.as_slice() else { return Err(StatusCode::NOT_FOUND) };
    if *first != "v2" {
        return Err(StatusCode::NOT_FOUND);
    }
    match rest {
        [] | [""] => allow(method, &Method::GET, control_of("ServerMetadata")),
        ["health", "live"] => allow(method, &Method::GET, Route::Live),
        ["health", "ready"] => allow(method, &Method::GET, Route::Ready),
        ["models", "stats"] => allow(method, &Method::GET, control_of("ModelStatistics")),
        ["models", model, "versions", version, verb @ ..] => model_route(method, model, version, verb),
        ["models", model, verb @ ..] => model_route(method, model, "", verb),
        ["repository", "index"] => allow(method, &Method::POST, control_of("RepositoryIndex")),
        ["repository", "models", model, verb @ ("load" | "unload")] => {
            let name = if *verb == "load" { "RepositoryModelLoad" } else { "RepositoryModelUnload" };
            allow(method, &Method::POST, Route::Control(name, subject(model, "")))
        }
        ["trace", "setting"] => get_or_post(method, control_of("TraceSetting")),
        ["logging"] => get_or_post(method, control_of("LogSettings")),
        ["systemsharedmemory", rest @ ..] => region_route(
            method,
            rest,
            ["SystemSharedMemoryStatus", "SystemSharedMemoryRegister", "SystemSharedMemoryUnregister"],
        ),
        ["cudasharedmemory", rest @ ..] => region_route(
            method,
            rest,
            ["CudaSharedMemoryStatus", "CudaSharedMemoryRegister", "CudaSharedMemoryUnregister"],
        ),
        _ => Err(StatusCode::NOT_FOUND),
    }
}

fn model_route(
    method: &Method,
    model: &str,
    version: &str,
    verb: &[&str],
) -> std::result::Result<Route, StatusCode> {
    let subject = subject(model, version);
    let control = |verb| Route::Control(verb, subject.clone());
    match verb {
        [] => allow(method, &Method::GET, control("ModelMetadata")),
        ["ready"] => allow(method, &Method::GET, control("ModelReady")),
        ["config"] => allow(method, &Method::GET, control("ModelConfig")),
        ["stats"] => allow(method, &Method::GET, control("ModelStatistics")),
        ["infer"] => allow(method, &Method::POST, Route::Infer(subject)),
        ["generate" | "generate_stream"] => allow(method, &Method::POST, control("Generate")),
        ["trace", "setting"] if version.is_empty() => get_or_post(method, control("TraceSetting")),
        _ => Err(StatusCode::NOT_FOUND),
    }
}

fn region_route(
    method: &Method,
    path: &[&str],
    verbs: [&'static str; 3],
) -> std::result::Result<Route, StatusCode> {
    let [status, register, unregister] = verbs;
    let (region, verb) = match path {
        ["region", region, verb] => (*region, *verb),
        [verb] => ("", *verb),
        _ => return Err(StatusCode::NOT_FOUND),
    };
    let control = |verb| Route::Control(verb, Subject { region: region.into(), ..Subject::default() });
    match verb {
        "status" => allow(method, &Method::GET, control(status)),
        "register" => allow(method, &Method::POST, control(register)),
        "unregister" => allow(method, &Method::POST, control(unregister)),
        _ => Err(StatusCode::NOT_FOUND),
    }
}

fn subject(model: &str, version: &str) -> Subject {
    Subject { model: model.into(), version: version.into(), ..Subject::default() }
}

fn control_of(verb: &'static str) -> Route {
    Route::Control(verb, Subject::default())
}

fn allow(method: &Method, wanted: &Method, route: Route) -> std::result::Result<Route, StatusCode> {
    if method == wanted { Ok(route) } else { Err(StatusCode::METHOD_NOT_ALLOWED) }
}

fn get_or_post(method: &Method, route: Route) -> std::result::Result<Route, StatusCode> {
    let wanted = if method == Method::POST { &Method::POST } else { &Method::GET };
    allow(method, wanted, route)
}

fn percent_decode(path: &str) -> Option<String> {
    if !path.contains('%') {
        return Some(path.into());
    }
    let mut bytes = path.bytes();
    let mut decoded = Vec::with_capacity(path.len());
    while let Some(byte) = bytes.next() {
        if byte == b'%' {
            let digits = [bytes.next()?, bytes.next()?];
            decoded.push(u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?);
        } else {
            decoded.push(byte);
        }
    }
    String::from_utf8(decoded).ok()
}

async fn infer(
    wire: &Wire,
    subject: &Subject,
    local: bool,
    headers: &HeaderMap,
    body: Incoming,
) -> Result<Response<Pieces>> {
    let received = receive(wire, subject, local, headers, body).await;
    let (mut ticket, formats) = received.inspect_err(|error| wire.refusals.count(Door::Http, error.kind))?;
    ticket.intake().ring();
    let reply = std::future::poll_fn(|context| ticket.poll(context)).await?;
    let settled = reply.settled;
    let (mut pieces, json_length) = binary::encode(reply, &formats)?;
    let coding = compression::preferred(headers, header::ACCEPT_ENCODING.as_str());
    if let Some(coding) = coding {
        pieces = vec![compression::pack(coding, Compression::fast(), pieces).await?];
    }
    let kind = if json_length.is_some() { "application/octet-stream" } else { "application/json" };
    let mut response = reply_of(pieces, ticket.permit(), kind)?;
    let headers = response.headers_mut();
    if let Some(coding) = coding {
        headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static(coding.name()));
    }
    if let Some(length) = json_length {
        headers.insert(JSON_LENGTH, HeaderValue::from(length));
    }
    ticket.intake().encoded(settled);
    Ok(response)
}

async fn receive(
    wire: &Wire,
    subject: &Subject,
    local: bool,
    headers: &HeaderMap,
    body: Incoming,
) -> Result<(Ticket, Formats)> {
    let json_length = json_length(headers)?;
    let (body, permit) = read_body(wire, headers, body, wire.limits.http_body).await?;
    let arrived = now();
    let (envelope, formats) = binary::decode(&subject.model, &subject.version, &body, json_length)?;
    drop(body); // what the request needs of it, it holds
    Ok((admit(wire, envelope, local, permit, arrived)?, formats))
}

/// A reply that is booked until it is written.
fn reply_of(mut pieces: Vec<Bytes>, permit: Arc<Permit>, kind: &'static str) -> Result<Response<Pieces>> {
    hold_until_written(permit, &mut pieces)?;
    let mut response = Response::new(Pieces::new(pieces));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    Ok(response)
}

fn json_length(headers: &HeaderMap) -> Result<Option<usize>> {
    let Some(value) = headers.get(JSON_LENGTH) else { return Ok(None) };
    let number = value.to_str().ok().and_then(|text| text.trim().parse().ok());
    number.map(Some).ok_or_else(|| {
        Error::invalid(format!(
            "invalid Inference-Header-Content-Length: expected the number of JSON bytes, got {value:?}"
        ))
    })
}

async fn control(
    wire: &Wire,
    door: Door,
    verb: &'static str,
    subject: Subject,
    local: bool,
    headers: &HeaderMap,
    body: Incoming,
) -> Result<Response<Pieces>> {
    let (payload, permit) = read_body(wire, headers, body, MAX_CONTROL_BODY).await?;
    let (answer, reply) = oneshot::channel();
    wire.control.push(Call { door, verb, subject, payload, local, answer })?;
    let body = reply.await.unwrap_or_else(|_| Err(Error::unavailable("Server is stopping")))?;
    let kind = if door == Door::Metrics { "text/plain; charset=utf-8" } else { "application/json" };
    reply_of(vec![body], permit, kind)
}

/// The whole body, decompressed: the one frame it came in, or assembled by one copy.
async fn read_body(
    wire: &Wire,
    headers: &HeaderMap,
    mut body: Incoming,
    limit: usize,
) -> Result<(Bytes, Arc<Permit>)> {
    let coding = coding(headers)?;
    let announced = body.size_hint().exact().map(|length| usize::try_from(length).unwrap_or(usize::MAX));
    wire.gate.check_announced(announced.unwrap_or(0))?;
    if let Some(length) = announced.filter(|&length| length > limit) {
        return Err(Error::invalid(format!("a body of {length} bytes is over the limit of {limit}")));
    }
    let permit = wire.gate.enter()?;
    let mut assembly = Assembly::new(announced);
    while let Some(data) = next_data(&mut body, wire.limits.pause).await? {
        permit.grow(data.len())?;
        assembly.add(data)?;
        if assembly.length > limit {
            return Err(Error::invalid(format!("a body of over {limit} bytes, which is the limit")));
        }
    }
    let body = assembly.finish()?;
    match coding {
        None => Ok((body, permit)),
        Some(coding) => compression::unpack(coding, body, limit, permit).await,
    }
}

fn coding(headers: &HeaderMap) -> Result<Option<Coding>> {
    let Some(value) = headers.get(header::CONTENT_ENCODING) else { return Ok(None) };
    let name = value.to_str().unwrap_or_default().trim();
    if name.is_empty() || name.eq_ignore_ascii_case("identity") {
        return Ok(None);
    }
    Coding::from_name(name).map(Some).ok_or_else(|| {
        Error::unsupported(format!(
            "Content-Encoding {value:?} is not served; expected gzip, deflate or identity"
        ))
    })
}

/// The next bytes of a body; `None` at its end.
async fn next_data(body: &mut Incoming, pause: Duration) -> Result<Option<Bytes>> {
    loop {
        let next = tokio::time::timeout(pause, body.frame()).await;
        let next = next.map_err(|_| {
            Error::invalid(format!("the request body did not go on for {} s", pause.as_secs_f32()))
        })?;
        let frame = next
            .transpose()
            .map_err(|error| Error::invalid(format!("the request ended within its body: {error}")))?;
        match frame.map(Frame::into_data) {
            None => return Ok(None),
            Some(Ok(data)) => return Ok(Some(data)),
            Some(Err(_trailers)) => {}
        }
    }
}

/// A body that is put together from its frames: into one buffer where its length is known, else in pieces that grow with
/// it, so that many small chunks cost what they weigh.
struct Assembly {
    announced: Option<usize>,
    length: usize,
    state: Parts,
}

enum Parts {
    Frame(Bytes),
    Buffer(Buffer),
    Pieces(Vec<Vec<u8>>),
}

impl Assembly {
    fn new(announced: Option<usize>) -> Self {
        let state = announced.map_or(Parts::Pieces(vec![]), |_| Parts::Frame(Bytes::new()));
        Self { announced, length: 0, state }
    }

    fn add(&mut self, data: Bytes) -> Result<()> {
        let (at, announced) = (self.length, self.announced.unwrap_or(0));
        self.length += data.len();
        match &mut self.state {
            Parts::Frame(_) if data.len() >= announced => self.state = Parts::Frame(data),
            Parts::Frame(first) => {
                let mut buffer = Buffer::ending_aligned(announced)?;
                buffer.write(0, first);
                buffer.write(at, &data);
                self.state = Parts::Buffer(buffer);
            }
            Parts::Buffer(buffer) => buffer.write(at, &data),
            Parts::Pieces(pieces) => match pieces.last_mut() {
                Some(last) if data.len() <= last.capacity() - last.len() => last.extend_from_slice(&data),
                _ => {
                    let mut piece = Vec::with_capacity(data.len().max(at.clamp(4 << 10, 1 << 20)));
                    piece.extend_from_slice(&data);
                    pieces.push(piece);
                }
            },
        }
        Ok(())
    }

    fn finish(self) -> Result<Bytes> {
        match self.state {
            Parts::Frame(frame) => Ok(frame),
            Parts::Buffer(buffer) => Ok(buffer.freeze()),
            Parts::Pieces(pieces) => compression::join(&pieces, self.length),
        }
    }
}

fn empty() -> Response<Pieces> {
    Response::new(Pieces::new(vec![]))
}

fn refusal(status: StatusCode, text: &str) -> Response<Pieces> {
    let body = serde_json::json!({ "error": text }).to_string();
    let mut response = Response::new(Pieces::new(vec![body.into()]));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// A body of known length in several pieces, none of which is copied.
struct Pieces {
    left: VecDeque<Bytes>,
}

impl Pieces {
    fn new(pieces: Vec<Bytes>) -> Self {
        Self { left: pieces.into_iter().filter(|piece| !piece.is_empty()).collect() }
    }
}

impl Body for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<std::result::Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.left.pop_front().map(|piece| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.left.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left.iter().map(|piece| piece.len() as u64).sum())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verb(method: &Method, path: &str) -> std::result::Result<Route, StatusCode> {
        route(Door::Http, method, path)
    }

    #[test]
    fn paths_lead_where_triton_leads_them() {
        let named = |verb, model: &str, version: &str| Ok(Route::Control(verb, subject(model, version)));
        assert_eq!(verb(&Method::GET, "/v2/health/live"), Ok(Route::Live));
        assert_eq!(verb(&Method::GET, "/v2/models/a"), named("ModelMetadata", "a", ""));
        assert_eq!(verb(&Method::GET, "/v2/models/a/versions/3/stats"), named("ModelStatistics", "a", "3"));
        assert_eq!(verb(&Method::POST, "/v2/models/a%20b/infer"), Ok(Route::Infer(subject("a b", ""))));
        assert_eq!(verb(&Method::GET, "/v2/models/stats"), named("ModelStatistics", "", ""));
        assert_eq!(verb(&Method::GET, "/v2/models/a/infer"), Err(StatusCode::METHOD_NOT_ALLOWED));
        assert_eq!(verb(&Method::GET, "/v3"), Err(StatusCode::NOT_FOUND));
        assert_eq!(verb(&Method::GET, "/v2/models/a/nothing"), Err(StatusCode::NOT_FOUND));
        assert_eq!(verb(&Method::GET, "/v2/%zz"), Err(StatusCode::NOT_FOUND));
        let region = Subject { region: "r".into(), ..Subject::default() };
        let register = Route::Control("SystemSharedMemoryRegister", region);
        assert_eq!(verb(&Method::POST, "/v2/systemsharedmemory/region/r/register"), Ok(register));
    }
}
