//! The wire's side of a child process that executes Python models: one message to it for each batch, one back.
//!
//! The format, in little endian; `headrace/python_model/channel.py` is the other side. A message is its length (u32, of what
//! follows), its kind (u8) and its fields. Texts are a length (u32) and bytes. Descriptors travel beside the message, in the
//! order in which objects are introduced.
//!
//! | kind | direction | fields |
//! | --- | --- | --- |
//! | `EXECUTE` | to the child | objects, retired numbers, the block for outputs (number), requests |
//! | `BLOCK` | to the child | objects, retired numbers, the block for outputs: the answer to `GROW` |
//! | `ASKED` | to the child | u8: the answer to `CANCELLED` |
//! | `ANSWERS` | from the child | answers, one for each request, in order |
//! | `GROW` | from the child | u64: bytes that the block for outputs must have |
//! | `CANCELLED` | from the child | u32: whether the client of this request is gone |
//!
//! Objects are a count (u32) and pairs (u64, u64) of number and bytes; retired numbers a count (u32) and u64 each.
//! A request: texts for id and parameters (JSON), inputs, outputs. An input: position (u32), object (u64), offset (u64), bytes
//! (u64), dimensions. An output that is wanted: position (u32), object (u64; 0: in the block for outputs), offset, bytes.
//! Dimensions are a count (u32) and i64 each. An answer: u8 whether it is an error. An error: kind (text), message (text).
//! Otherwise outputs: position (u32), dtype (text), u8 whether it is in the wanted object, offset (u64, in the block for
//! outputs), bytes (u64), dimensions.
//!
//! The child runs its model's owner's code: every number that it sends is checked.
use std::{
    collections::{HashMap, hash_map::Entry},
    io::{self, BufReader, IoSlice, Read, Write},
    mem::MaybeUninit,
    net::Shutdown,
    os::{fd::BorrowedFd, unix::net::UnixStream},
    sync::Arc,
    time::Duration,
};

use bytes::{Buf, Bytes};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use crate::{
    buffer::{ALIGNMENT, Memory, SharedBlock},
    error::{Error, Kind},
    shm::{Object, ObjectWatch},
};

pub(crate) const EXECUTE: u8 = 1;
pub(crate) const BLOCK: u8 = 2;
pub(crate) const ASKED: u8 = 3;
const ANSWERS: u8 = 16;
const GROW: u8 = 17;
const CANCELLED: u8 = 18;

/// Descriptors beside one message; the kernel allows 253.
const MOST_DESCRIPTORS: usize = 250;
/// Bytes of a message from the child, without tensors.
const MOST_BYTES: usize = 64 << 20;
/// Bytes that are read at once: a usual message is one read.
const READ_AHEAD: usize = 64 << 10;
/// Bytes of the smallest block.
const LEAST_BLOCK: usize = 64 << 10;
/// Blocks that are kept for the next batches when nobody uses them.
const KEPT_BLOCKS: usize = 8;
/// Numbers of blocks start here: those of clients' objects, which are counted from 1, never come so far.
const FIRST_BLOCK: u64 = 1 << 62;

/// What went wrong between us and the child, in words; it cannot be used any more.
pub(crate) type Broken = String;

/// An answer to one request.
pub(crate) type Answer = std::result::Result<Vec<Output>, Error>;

/// An output as the child describes it; nothing is checked against the model yet.
pub(crate) struct Output {
    pub(crate) position: usize,
    pub(crate) dtype: String,
    /// `None`: it is in the object that was wanted.
    pub(crate) bytes: Option<Bytes>,
    pub(crate) length: usize,
    pub(crate) shape: Vec<i64>,
}

/// What the child asks for before it answers.
pub(crate) enum Question {
    /// Whether the client of this request of the batch is gone.
    IsCancelled(usize),
    Answers(Vec<Answer>),
}

/// The connection to a child, and the memory that it shares.
pub(crate) struct Child {
    socket: BufReader<UnixStream>,
    known: HashMap<u64, ObjectWatch>,
    blocks: Vec<(u64, Arc<SharedBlock>)>,
    /// The block of the outputs of this batch.
    outputs: Option<Arc<SharedBlock>>,
    next_block: u64,
    /// Bytes that the outputs of some batch needed.
    largest: usize,
    /// How long the child may be silent within a batch.
    patience: Duration,
}

impl Child {
    /// # Errors
    /// The operating system's.
    pub(crate) fn new(socket: UnixStream, patience: Duration) -> io::Result<Self> {
        socket.set_read_timeout(Some(patience))?;
        socket.set_write_timeout(Some(patience))?;
        let socket = BufReader::with_capacity(READ_AHEAD, socket);
        Ok(Self {
            socket,
            known: HashMap::new(),
            blocks: vec![],
            outputs: None,
            next_block: FIRST_BLOCK,
            largest: 0,
            patience,
        })
    }

    /// The child sees the end of the connection.
    pub(crate) fn close(&self) {
        let _ = self.socket.get_ref().shutdown(Shutdown::Both); // it may be gone already
    }

    /// Starts the message of a batch.
    pub(crate) fn begin(&mut self) -> Message<'_> {
        Message {
            child: self,
            objects: vec![],
            retired: vec![],
            fresh: vec![],
            body: Vec::with_capacity(1024),
        }
    }

    /// The child's next message.
    ///
    /// # Errors
    /// What ended the connection: the child is gone, was silent for too long, or sent what is no message.
    pub(crate) fn receive(&mut self, requests: usize) -> std::result::Result<Question, Broken> {
        loop {
            let message = self.read().map_err(|error| match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                    format!("did not answer within {} s", self.patience.as_secs_f32())
                }
                io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => "ended".into(),
                _ => format!("cannot be read from: {error}"),
            })?;
            let mut fields = Fields(&message);
            match fields.byte()? {
                ANSWERS => {
                    let answers = self.answers(&mut fields, requests)?;
                    self.outputs = None;
                    return Ok(Question::Answers(answers));
                }
                GROW => {
                    let bytes = fields.size()?;
                    self.grow(bytes)?;
                }
                CANCELLED => {
                    let at = fields.count()?;
                    if at >= requests {
                        return Err(format!("asked for request {at} of {requests}"));
                    }
                    return Ok(Question::IsCancelled(at));
                }
                kind => return Err(format!("sent a message of unknown kind {kind}")),
            }
        }
    }

    /// Answers `IsCancelled`.
    ///
    /// # Errors
    /// The child is gone.
    pub(crate) fn tell(&mut self, cancelled: bool) -> std::result::Result<(), Broken> {
        send(self.socket.get_ref(), &framed(ASKED, &[&[u8::from(cancelled)]]), &[])
    }

    fn read(&mut self) -> io::Result<Vec<u8>> {
        let mut length = [0; 4];
        self.socket.read_exact(&mut length)?;
        let length = u32::from_le_bytes(length) as usize;
        if length == 0 || length > MOST_BYTES {
            return Err(io::Error::other(format!("a message of {length} bytes")));
        }
        let mut message = Vec::new();
        message.try_reserve_exact(length).map_err(io::Error::other)?;
        message.resize(length, 0);
        self.socket.read_exact(&mut message)?;
        Ok(message)
    }

    fn answers(&self, fields: &mut Fields, requests: usize) -> std::result::Result<Vec<Answer>, Broken> {
        let count = fields.count()?;
        if count != requests {
            return Err(format!("sent {count} answers for {requests} requests"));
        }
        let answers = (0..count).map(|_| self.answer(fields)).collect::<std::result::Result<_, _>>()?;
        if !fields.0.is_empty() {
            return Err(format!("sent {} bytes too many", fields.0.len()));
        }
        Ok(answers)
    }

    fn answer(&self, fields: &mut Fields) -> std::result::Result<Answer, Broken> {
        if fields.byte()? != 0 {
            let (kind, message) = (fields.text()?, fields.text()?);
            return Ok(Err(Error::new(Kind::from_name(&kind), message)));
        }
        let count = fields.count()?;
        let mut outputs = Vec::new();
        for _ in 0..count {
            let (position, dtype, placed) = (fields.count()?, fields.text()?, fields.byte()? != 0);
            let (offset, length) = (fields.size()?, fields.size()?);
            let shape = fields.dimensions()?;
            let bytes = if placed { None } else { Some(self.output_bytes(offset, length)?) };
            outputs.push(Output { position, dtype, bytes, length, shape });
        }
        Ok(Ok(outputs))
    }

    fn output_bytes(&self, offset: usize, length: usize) -> std::result::Result<Bytes, Broken> {
        if length == 0 {
            return Ok(Bytes::new());
        }
        let part = self.outputs.as_ref().and_then(|block| block.part(offset, length));
        part.ok_or_else(|| format!("put an output at {offset} + {length}, outside of its memory"))
    }

    /// A larger block for outputs.
    fn grow(&mut self, bytes: usize) -> std::result::Result<(), Broken> {
        let mut message = self.begin();
        let number = message.outputs(bytes)?;
        message.number(number);
        message.send(BLOCK)
    }

    /// A block of at least `bytes` that nobody uses, and its number; tells whether the child has yet to map it.
    fn block(&mut self, bytes: usize) -> std::result::Result<(u64, Arc<SharedBlock>, bool), Broken> {
        let wanted = bytes.max(LEAST_BLOCK);
        let is_free =
            |(_, block): &&(u64, Arc<SharedBlock>)| Arc::strong_count(block) == 1 && block.len() >= wanted;
        if let Some((number, block)) = self.blocks.iter().filter(is_free).min_by_key(|(_, block)| block.len())
        {
            return Ok((*number, block.clone(), false));
        }
        let length = wanted.checked_next_power_of_two().unwrap_or(wanted);
        let block =
            SharedBlock::new(length).map_err(|error| format!("cannot be given {length} bytes: {error}"))?;
        let (number, block) = (self.next_block, Arc::new(block));
        self.next_block += 1;
        self.blocks.push((number, block.clone()));
        Ok((number, block, true))
    }

    /// Blocks that are not needed any more: the smallest free ones over `KEPT_BLOCKS`.
    fn surplus(&mut self) -> Vec<u64> {
        let mut gone = vec![];
        while self.blocks.len() > KEPT_BLOCKS {
            let free = self.blocks.iter().enumerate().filter(|(_, (_, block))| Arc::strong_count(block) == 1);
            let Some((at, _)) = free.min_by_key(|(_, (_, block))| block.len()) else { break };
            gone.push(self.blocks.swap_remove(at).0);
        }
        gone
    }
}

/// A message that is being written. Its objects come first, so they are collected while the rest is.
pub(crate) struct Message<'a> {
    child: &'a mut Child,
    objects: Vec<Object>,
    fresh: Vec<(u64, Arc<SharedBlock>)>,
    retired: Vec<u64>,
    body: Vec<u8>,
}

impl Message<'_> {
    pub(crate) fn number(&mut self, value: u64) {
        self.body.extend_from_slice(&value.to_le_bytes());
    }

    /// # Errors
    /// It is over 32 bits.
    pub(crate) fn count(&mut self, value: usize) -> std::result::Result<(), Broken> {
        let value = u32::try_from(value).map_err(|_| format!("cannot be told a count of {value}"))?;
        self.body.extend_from_slice(&value.to_le_bytes());
        Ok(())
    }

    pub(crate) fn text(&mut self, text: &[u8]) -> std::result::Result<(), Broken> {
        self.count(text.len())?;
        self.body.extend_from_slice(text);
        Ok(())
    }

    pub(crate) fn dimensions(&mut self, shape: &[i64]) -> std::result::Result<(), Broken> {
        self.count(shape.len())?;
        for dim in shape {
            self.number(dim.cast_unsigned());
        }
        Ok(())
    }

    /// The number of a client's object, which the child maps when it sees it for the first time.
    pub(crate) fn object(&mut self, object: Object) -> u64 {
        let number = object.number();
        if let Entry::Vacant(unknown) = self.child.known.entry(number) {
            unknown.insert(object.watch());
            self.objects.push(object);
        }
        number
    }

    /// A block for `bytes` of inputs.
    pub(crate) fn inputs(&mut self, bytes: usize) -> std::result::Result<(u64, Arc<SharedBlock>), Broken> {
        let (number, block, is_fresh) = self.child.block(bytes)?;
        if is_fresh {
            self.fresh.push((number, block.clone()));
        }
        Ok((number, block))
    }

    /// The number of a block for `bytes` of outputs, or for what earlier batches needed.
    pub(crate) fn outputs(&mut self, bytes: usize) -> std::result::Result<u64, Broken> {
        let wanted = bytes.max(self.child.largest);
        let (number, block) = self.inputs(wanted)?;
        self.child.largest = wanted;
        self.child.outputs = Some(block);
        Ok(number)
    }

    /// # Errors
    /// The child is gone.
    pub(crate) fn send(mut self, kind: u8) -> std::result::Result<(), Broken> {
        self.child.known.retain(|&number, watch| {
            let gone = watch.is_gone();
            if gone {
                self.retired.push(number);
            }
            !gone
        });
        self.retired.extend(self.child.surplus());
        let mut head = Vec::with_capacity(64);
        let mut put = |value: u64| head.extend_from_slice(&value.to_le_bytes());
        let objects = self.objects.iter().map(|object| (object.number(), object.len()));
        let blocks = self.fresh.iter().map(|(number, block)| (*number, block.len()));
        for (number, length) in objects.chain(blocks) {
            put(number);
            put(length as u64);
        }
        self.retired.iter().for_each(|&number| put(number));
        let counts = [self.objects.len() + self.fresh.len(), self.retired.len()];
        let descriptors: Vec<BorrowedFd<'_>> = self
            .objects
            .iter()
            .map(Object::descriptor)
            .chain(self.fresh.iter().map(|(_, block)| block.descriptor()))
            .collect();
        if descriptors.len() > MOST_DESCRIPTORS {
            return Err(format!("cannot be given {} new regions at once", descriptors.len()));
        }
        let counts = counts.map(|count| u32::try_from(count).unwrap_or(u32::MAX).to_le_bytes()).concat();
        send(self.child.socket.get_ref(), &framed(kind, &[&counts, &head, &self.body]), &descriptors)
    }
}

/// Offset of the next input behind one that ends at `end`.
pub(crate) fn aligned(end: usize) -> usize {
    end.next_multiple_of(ALIGNMENT)
}

/// Bytes that these inputs take in a block.
pub(crate) fn space<'a>(inputs: impl Iterator<Item = &'a Memory>) -> usize {
    inputs.map(|memory| if let Memory::Inline(bytes) = memory { aligned(bytes.len()) } else { 0 }).sum()
}

fn framed(kind: u8, parts: &[&[u8]]) -> Vec<u8> {
    let length = 1 + parts.iter().map(|part| part.len()).sum::<usize>();
    let mut message = Vec::with_capacity(4 + length);
    message.extend_from_slice(&u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes());
    message.push(kind);
    for part in parts {
        message.extend_from_slice(part);
    }
    message
}

fn send(
    mut socket: &UnixStream,
    message: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> std::result::Result<(), Broken> {
    let outcome = if descriptors.is_empty() {
        socket.write_all(message)
    } else {
        send_with(socket, message, descriptors).and_then(|sent| socket.write_all(&message[sent..]))
    };
    outcome.map_err(|error| match error.kind() {
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => "ended".into(),
        _ => format!("cannot be written to: {error}"),
    })
}

fn send_with(socket: &UnixStream, message: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<usize> {
    let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
    let mut beside = SendAncillaryBuffer::new(&mut space);
    beside.push(SendAncillaryMessage::ScmRights(descriptors));
    Ok(sendmsg(socket, &[IoSlice::new(message)], &mut beside, SendFlags::NOSIGNAL)?)
}

/// Reads the fields of a message from the child.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn need(&self, bytes: usize) -> std::result::Result<(), Broken> {
        if self.0.len() < bytes { Err("sent a message that ends early".into()) } else { Ok(()) }
    }

    fn byte(&mut self) -> std::result::Result<u8, Broken> {
        self.need(1)?;
        Ok(self.0.get_u8())
    }

    fn count(&mut self) -> std::result::Result<usize, Broken> {
        self.need(4)?;
        Ok(self.0.get_u32_le() as usize)
    }

    fn size(&mut self) -> std::result::Result<usize, Broken> {
        self.need(8)?;
        let value = self.0.get_u64_le();
        usize::try_from(value).map_err(|_| format!("sent a size of {value}"))
    }

    fn text(&mut self) -> std::result::Result<String, Broken> {
        let length = self.count()?;
        self.need(length)?;
        let text = String::from_utf8_lossy(&self.0[..length]).into_owned();
        self.0.advance(length);
        Ok(text)
    }

    fn dimensions(&mut self) -> std::result::Result<Vec<i64>, Broken> {
        let count = self.count()?;
        self.need(count.saturating_mul(8))?;
        Ok((0..count).map(|_| self.0.get_i64_le()).collect())
    }
}
