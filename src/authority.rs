//! Over a Unix socket gRPC's C core, and with it every Python and C++ client, names the socket's path as authority, with its
//! slashes as `%2F`. No host is called so, and `h2` refuses the call. Nothing here asks for the authority: each `%` in one
//! becomes a `-` as it comes in, which leaves every length as it was.
use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

const PREFACE: usize = 24;
const HEAD: usize = 9;
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
/// The name as a literal of HPACK: its length and its characters.
const NAME: &[u8] = b"\x0a:authority";
/// In the first byte of a literal: it is Huffman-coded. The rest are the length, or all ones when it goes on.
const HUFFMAN: u8 = 0x80;
const LONG: u8 = 0x7f;

pub(crate) struct HostLike<S> {
    stream: S,
    scan: Scan,
}

impl<S> HostLike<S> {
    pub(crate) fn new(stream: S) -> Self {
        Self { stream, scan: Scan { skip: PREFACE, ..Scan::default() } }
    }
}

/// Where in the frames of a connection its bytes have come to.
#[derive(Default)]
struct Scan {
    /// Bytes of no interest ahead.
    skip: usize,
    head: Vec<u8>,
    /// Bytes of a header block ahead, when `skip` is 0.
    block: usize,
    state: Literal,
}

/// What of a header is expected next.
enum Literal {
    /// The name, of which so many bytes were just seen.
    Name(usize),
    Length,
    /// More of a length, from this bit on.
    LongLength(usize, u32),
    /// So many bytes of the value.
    Value(usize),
}

impl Default for Literal {
    fn default() -> Self {
        Self::Name(0)
    }
}

impl Scan {
    fn pass(&mut self, mut bytes: &mut [u8]) {
        while !bytes.is_empty() {
            if self.skip > 0 {
                let skipped = self.skip.min(bytes.len());
                self.skip -= skipped;
                bytes = &mut bytes[skipped..];
            } else if self.block > 0 {
                let (block, rest) = bytes.split_at_mut(self.block.min(bytes.len()));
                self.block -= block.len();
                for byte in block {
                    self.header_byte(byte);
                }
                bytes = rest;
            } else {
                let (part, rest) = bytes.split_at_mut((HEAD - self.head.len()).min(bytes.len()));
                self.head.extend_from_slice(part);
                bytes = rest;
                if let [a, b, c, kind, ..] = self.head[..]
                    && self.head.len() == HEAD
                {
                    let length = u32::from_be_bytes([0, a, b, c]) as usize;
                    let headers = matches!(kind, HEADERS | CONTINUATION);
                    (self.skip, self.block) = if headers { (0, length) } else { (length, 0) };
                    if kind == HEADERS {
                        self.state = Literal::default();
                    }
                    self.head.clear();
                }
            }
        }
    }

    fn header_byte(&mut self, byte: &mut u8) {
        self.state = match self.state {
            Literal::Name(seen) if *byte == NAME[seen] && seen + 1 == NAME.len() => Literal::Length,
            Literal::Name(seen) if *byte == NAME[seen] => Literal::Name(seen + 1),
            Literal::Name(_) => Literal::Name(usize::from(*byte == NAME[0])),
            Literal::Length if *byte & HUFFMAN != 0 => Literal::Name(0),
            Literal::Length if *byte == LONG => Literal::LongLength(usize::from(LONG), 0),
            Literal::Length => Literal::value(usize::from(*byte)),
            Literal::LongLength(length, bit) => {
                let length = length + (usize::from(*byte & LONG) << bit);
                match *byte & !LONG {
                    0 => Literal::value(length),
                    _ if bit < 14 => Literal::LongLength(length, bit + 7),
                    _ => Literal::default(), // no path is so long
                }
            }
            Literal::Value(left) => {
                if *byte == b'%' {
                    *byte = b'-';
                }
                Literal::value(left - 1)
            }
        }
    }
}

impl Literal {
    fn value(length: usize) -> Self {
        if length == 0 { Self::default() } else { Self::Value(length) }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for HostLike<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        self.scan.pass(&mut buffer.filled_mut()[before..]);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for HostLike<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap_or(0).to_be_bytes();
        [&length[1..], &[kind, 0, 0, 0, 0, 1], payload].concat()
    }

    fn passed(bytes: &[u8], step: usize) -> Vec<u8> {
        let mut bytes = bytes.to_vec();
        let mut scan = Scan { skip: PREFACE, ..Scan::default() };
        bytes.chunks_mut(step).for_each(|chunk| scan.pass(chunk));
        bytes
    }

    #[test]
    fn only_authorities_change_however_the_bytes_are_cut() {
        let long = "a%2F".repeat(60);
        let literal = |value: &str| {
            let byte = |length: usize| u8::try_from(length).unwrap_or(0);
            let length = match value.len().checked_sub(127) {
                Some(more) => vec![127, byte(more % 128) | 0x80, byte(more / 128)],
                None => vec![byte(value.len())],
            };
            [b"@\x0a:authority", length.as_slice(), value.as_bytes(), b"@\x05:path\x03/%2"].concat()
        };
        let stream = |value: &str, long: &str| {
            let data = frame(0, &literal("%2F")); // the same bytes in a tensor stay what they are
            let (first, last) = (frame(1, &literal(value)), frame(1, &literal(long)));
            [vec![b'%'; PREFACE], frame(4, b"%"), first, data, last].concat()
        };
        let (given, expected) =
            (stream("tmp%2Fx.sock", &long), stream("tmp-2Fx.sock", &long.replace('%', "-")));
        for step in [1, 2, 3, 7, 64, given.len()] {
            assert_eq!(passed(&given, step), expected, "cut every {step} bytes");
        }
    }
}
