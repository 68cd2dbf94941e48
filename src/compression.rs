//! gzip and deflate, both ways: messages that come compressed, and replies that are wanted so.
//!
//! Small ones are done by the wire thread itself, all others by a thread that may take its time: no connection waits for the
//! work of another. What a message becomes is booked while it grows, so a bomb ends at the limit of any other message.
use std::sync::Arc;

use bytes::{Buf, Bytes};
use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};
use http::HeaderMap;
use tokio::sync::oneshot;

use crate::{
    buffer::Buffer,
    error::{Error, Kind, Result},
    gate::Permit,
};

/// Bytes that a wire thread compresses itself, or decompresses from and to, in a fraction of a millisecond.
const SMALL: usize = 32 << 10;
/// Bytes of one step of the work: between two steps it looks whether anybody still waits.
const STEP: usize = 256 << 10;
/// 2 to this power bytes of history: the format's maximum.
const WINDOW_BITS: u8 = 15;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Coding {
    Gzip,
    /// The zlib format, which HTTP and gRPC call deflate.
    Deflate,
}

impl Coding {
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        [Self::Gzip, Self::Deflate].into_iter().find(|coding| name.eq_ignore_ascii_case(coding.name()))
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Deflate => "deflate",
        }
    }

    fn decompressor(self) -> Decompress {
        match self {
            Self::Gzip => Decompress::new_gzip(WINDOW_BITS),
            Self::Deflate => Decompress::new(true),
        }
    }

    fn compressor(self, level: Compression) -> Compress {
        match self {
            Self::Gzip => Compress::new_gzip(level, WINDOW_BITS),
            Self::Deflate => Compress::new(level, true),
        }
    }
}

/// What a client that sends this header (a list of codings with weights) likes best, if not the plain bytes.
pub(crate) fn preferred(headers: &HeaderMap, accept: &str) -> Option<Coding> {
    let texts = headers.get_all(accept).into_iter().filter_map(|value| value.to_str().ok());
    let mut best: Option<(Coding, f32)> = None;
    let mut plain = 0.0;
    for (name, weight) in texts.flat_map(|text| text.split(',')).filter_map(weighted) {
        if name.eq_ignore_ascii_case("identity") {
            plain = weight;
        }
        if let Some(coding) = Coding::from_name(name)
            && weight > best.map_or(0.0, |(_, weight)| weight)
        {
            best = Some((coding, weight));
        }
    }
    best.filter(|&(_, weight)| weight >= plain).map(|(coding, _)| coding)
}

/// `gzip;q=0.5`, as name and weight.
fn weighted(item: &str) -> Option<(&str, f32)> {
    let (name, parameters) = item.split_once(';').unwrap_or((item, ""));
    let weight =
        parameters.trim().strip_prefix("q=").map_or(Some(1.0), |weight| weight.trim().parse().ok())?;
    Some((name.trim(), weight))
}

/// The message that `packed` holds; at most `limit` bytes of it, booked on the permit as they come.
///
/// # Errors
/// `InvalidArgument` for bytes that are not of this coding, that end early or go on, and for a message over the limit;
/// `Unavailable` where the permit cannot grow.
pub(crate) async fn unpack(
    coding: Coding,
    packed: Bytes,
    limit: usize,
    permit: Arc<Permit>,
) -> Result<(Bytes, Arc<Permit>)> {
    let (engine, size) = (coding.decompressor(), packed.len());
    let mut work = Unpacking { coding, engine, packed, size, pieces: vec![], length: 0, limit, permit };
    if size <= SMALL && work.step(SMALL)? {
        return work.finish();
    }
    apart(move |wanted| {
        while wanted() {
            if work.step(STEP)? {
                return work.finish();
            }
        }
        Err(gone())
    })
    .await
}

struct Unpacking {
    coding: Coding,
    engine: Decompress,
    /// What is left of it.
    packed: Bytes,
    /// Bytes that it had.
    size: usize,
    pieces: Vec<Vec<u8>>,
    length: usize,
    limit: usize,
    permit: Arc<Permit>,
}

impl Unpacking {
    /// Fills the last piece, or a new one of `size` bytes; true when the message is complete.
    fn step(&mut self, size: usize) -> Result<bool> {
        if self.pieces.last().is_none_or(|last| last.len() == last.capacity()) {
            self.pieces.push(Vec::with_capacity(size));
        }
        let Some(piece) = self.pieces.last_mut() else { return Ok(true) };
        let (read, filled) = (self.engine.total_in(), piece.len());
        let status = self.engine.decompress_vec(&self.packed, piece, FlushDecompress::None);
        let (grown, more) = (piece.len() - filled, piece.len() == piece.capacity());
        self.packed.advance(usize::try_from(self.engine.total_in() - read).unwrap_or(usize::MAX));
        self.length += grown;
        if self.length > self.limit {
            let limit = self.limit;
            return Err(self.wrong(&format!("holds over {limit} bytes, the limit of a message")));
        }
        self.permit.grow(grown)?;
        match status {
            Err(_) => Err(self.wrong("cannot be decompressed")),
            Ok(Status::StreamEnd) if self.packed.is_empty() => Ok(true),
            Ok(Status::StreamEnd) => Err(self.wrong(&format!(
                "goes on after its end, which is at byte {}",
                self.size - self.packed.len()
            ))),
            Ok(_) if self.packed.is_empty() && !more => Err(self.wrong("ends early")),
            Ok(_) => Ok(false),
        }
    }

    fn wrong(&self, what: &str) -> Error {
        Error::invalid(format!("the {} message of {} bytes {what}", self.coding.name(), self.size))
    }

    fn finish(self) -> Result<(Bytes, Arc<Permit>)> {
        let message = join(&self.pieces, self.length)?;
        self.permit.shrink(self.size);
        Ok((message, self.permit))
    }
}

/// The pieces by one copy in a buffer whose end is aligned.
///
/// # Errors
/// `Unavailable` when there is no memory.
pub(crate) fn join<P: AsRef<[u8]>>(pieces: &[P], length: usize) -> Result<Bytes> {
    let mut buffer = Buffer::ending_aligned(length)?;
    let mut at = 0;
    for piece in pieces {
        buffer.write(at, piece.as_ref());
        at += piece.as_ref().len();
    }
    Ok(buffer.freeze())
}

/// All pieces as one compressed whole.
///
/// # Errors
/// `Internal` should the compressor fail.
pub(crate) async fn pack(coding: Coding, level: Compression, pieces: Vec<Bytes>) -> Result<Bytes> {
    if pieces.iter().map(Bytes::len).sum::<usize>() <= SMALL {
        return pack_all(coding, level, &pieces, &|| true);
    }
    apart(move |wanted| pack_all(coding, level, &pieces, wanted)).await
}

fn pack_all(
    coding: Coding,
    level: Compression,
    pieces: &[Bytes],
    wanted: &dyn Fn() -> bool,
) -> Result<Bytes> {
    let failed =
        |_| Error::new(Kind::Internal, format!("the {} compression of a reply failed", coding.name()));
    let mut engine = coding.compressor(level);
    let mut packed = Vec::new();
    for piece in pieces {
        let mut left = piece.as_ref();
        while !left.is_empty() {
            if !wanted() {
                return Err(gone());
            }
            let part = &left[..left.len().min(STEP)];
            packed.reserve(part.len() / 4 + 64);
            let read = engine.total_in();
            engine.compress_vec(part, &mut packed, FlushCompress::None).map_err(failed)?;
            left = &left[usize::try_from(engine.total_in() - read).unwrap_or(left.len())..];
        }
    }
    while engine.compress_vec(&[], &mut packed, FlushCompress::Finish).map_err(failed)? != Status::StreamEnd {
        packed.reserve(STEP);
    }
    Ok(packed.into())
}

/// Does the work on a thread that may take its time; it is told when nobody waits for it any more.
async fn apart<T: Send + 'static>(
    work: impl FnOnce(&dyn Fn() -> bool) -> Result<T> + Send + 'static,
) -> Result<T> {
    let (answer, reply) = oneshot::channel();
    tokio::task::spawn_blocking(move || {
        let done = work(&|| !answer.is_closed());
        let _ = answer.send(done);
    });
    reply.await.unwrap_or_else(|_| Err(Error::unavailable("Server is stopping")))
}

fn gone() -> Error {
    Error::new(Kind::Cancelled, "the client has gone")
}
