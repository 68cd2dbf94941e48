//! `grpc.health.v1.Health`: what Kubernetes and service meshes ask. Answered without Python, from what *ready* is made of.
use std::{future::poll_fn, time::Duration};

use bytes::Bytes;
use h2::{RecvStream, server::SendResponse};
use http::{HeaderMap, HeaderValue, Response, header::CONTENT_TYPE};
use prost::Message;

use crate::{
    error::{Error, Result},
    message::{self, Outgoing},
    wire::Wire,
};

pub(crate) const SERVICE: &str = "/grpc.health.v1.Health/";
/// The services that are known; the empty name is the server as a whole.
const KNOWN: [&str; 2] = ["", "inference.GRPCInferenceService"];
/// Bytes of a request, which is a name.
const MAX_REQUEST: usize = 4096;
/// How often a watched status is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);

#[derive(Clone, PartialEq, Message)]
struct Request {
    #[prost(string, tag = "1")]
    service: String,
}

#[derive(Clone, PartialEq, Message)]
struct Reply {
    #[prost(enumeration = "Status", tag = "1")]
    status: i32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
enum Status {
    Unknown = 0,
    Serving = 1,
    NotServing = 2,
    ServiceUnknown = 3,
}

/// Answers `Check` once, and `Watch` until the client leaves or the server ends.
pub(crate) async fn answer(
    wire: &Wire,
    verb: &str,
    headers: &HeaderMap,
    body: &mut RecvStream,
    respond: &mut SendResponse<Bytes>,
) {
    let service = match message::read(headers, body, wire, MAX_REQUEST).await {
        Ok((request, _permit)) => Request::decode(request)
            .map(|request| request.service)
            .map_err(|error| Error::invalid(format!("failed to parse HealthCheckRequest: {error}"))),
        Err(error) => Err(error),
    };
    let outcome = match (verb, service) {
        (_, Err(error)) => Err(error),
        ("Check", Ok(service)) => check(wire, &service),
        ("Watch", Ok(service)) => return watch(wire, &service, respond).await,
        (other, _) => Err(Error::unsupported(format!("{SERVICE}{other} is not served"))),
    };
    message::send(respond, outcome, wire.limits.pause).await;
}

fn check(wire: &Wire, service: &str) -> Result<Outgoing> {
    match status(wire, service) {
        Status::ServiceUnknown => Err(Error::not_found(format!(
            "unknown service '{service}'; expected '' or 'inference.GRPCInferenceService'"
        ))),
        status => Ok(Outgoing::small(&encoded(status))),
    }
}

fn status(wire: &Wire, service: &str) -> Status {
    match wire.unready() {
        _ if !KNOWN.contains(&service) => Status::ServiceUnknown,
        Some(_) => Status::NotServing,
        None => Status::Serving,
    }
}

fn encoded(status: Status) -> Vec<u8> {
    Reply { status: status.into() }.encode_to_vec()
}

/// Sends the status now and whenever it has changed.
async fn watch(wire: &Wire, service: &str, respond: &mut SendResponse<Bytes>) {
    let mut response = Response::new(());
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    let Ok(mut stream) = respond.send_response(response, false) else { return };
    let mut told = None;
    loop {
        let now = status(wire, service);
        if told != Some(now) {
            let piece = message::prefixed(&encoded(now));
            if message::send_piece(&mut stream, piece, wire.limits.pause).await.is_none() {
                return;
            }
            told = Some(now);
        }
        tokio::select! {
            () = tokio::time::sleep(LOOK_EVERY) => {}
            _ = poll_fn(|context| stream.poll_reset(context)) => return,
            () = wire.leaving() => {
                let _ = stream.send_trailers(message::trailers(14, "Server is stopping"));
                return;
            }
        }
    }
}
