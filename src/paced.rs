//! A connection whose peer must take what it is sent: one that does not read for too long is closed. It also tells when big
//! messages come or go.
use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::Notify,
    time::{Instant, Sleep, sleep},
};

/// Bytes of one read or write that only a big message has.
const BIG: usize = 64 << 10;

pub(crate) struct Paced<S> {
    stream: S,
    pause: Duration,
    /// Runs while a write waits; kept for the next time.
    timer: Option<Pin<Box<Sleep>>>,
    waiting: bool,
    big: Arc<Notify>,
}

impl<S> Paced<S> {
    /// Writes fail when the peer has taken nothing for `pause`; `big` is told of every big read or write.
    pub(crate) fn new(stream: S, pause: Duration, big: Arc<Notify>) -> Self {
        Self { stream, pause, timer: None, waiting: false, big }
    }

    fn weigh(&self, bytes: usize) {
        if bytes >= BIG {
            self.big.notify_one();
        }
    }

    fn watch<T>(&mut self, written: Poll<io::Result<T>>, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.waiting = false;
            return written;
        }
        let pause = self.pause;
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(pause)));
        if !self.waiting {
            self.waiting = true;
            timer.as_mut().reset(Instant::now() + pause);
        }
        ready!(timer.as_mut().poll(context));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the peer does not read")))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Paced<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        self.weigh(buffer.filled().len() - before);
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Paced<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.weigh(bytes.len());
        self.watch(written, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.weigh(slices.iter().map(|slice| slice.len()).sum());
        self.watch(written, context)
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
