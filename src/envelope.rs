//! What a door makes of an infer call: names and references, nothing looked up yet.
use bytes::Bytes;

/// A reference to a part of a registered region.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RegionPart {
    pub(crate) name: String,
    pub(crate) offset: u64,
    pub(crate) length: u64,
}

/// Where an input's bytes are.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Source {
    Inline(Bytes),
    Region(RegionPart),
}

#[derive(Debug)]
pub(crate) struct InputEnvelope {
    pub(crate) name: String,
    pub(crate) datatype: String,
    pub(crate) shape: Vec<i64>,
    pub(crate) source: Source,
}

/// A requested output; without a region it comes back in the reply.
#[derive(Debug)]
pub(crate) struct OutputEnvelope {
    pub(crate) name: String,
    pub(crate) region: Option<RegionPart>,
    /// How many of its largest elements are wanted in place of all; 0: all.
    pub(crate) classes: usize,
}

#[derive(Debug, Default)]
pub(crate) struct Envelope {
    pub(crate) model: String,
    pub(crate) version: String,
    pub(crate) id: String,
    /// Its parameters as a JSON object; empty when it has none.
    pub(crate) parameters: String,
    pub(crate) inputs: Vec<InputEnvelope>,
    /// Empty: all outputs of the model, in the reply.
    pub(crate) outputs: Vec<OutputEnvelope>,
    /// The content of the model's one input, when there is nothing else.
    pub(crate) raw: Option<Bytes>,
}
