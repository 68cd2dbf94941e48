//! The wire of Headrace: HTTP/2 and HTTP/1.1, protobuf and JSON envelopes, shared-memory regions, the queue of pending
//! requests and the hand-off to Python. It decides nothing that a model owner might want to read or change, it never calls
//! Python, and no thread of it ever waits for the interpreter.
mod authority;
mod binary;
mod bounds;
mod buffer;
mod child;
mod classify;
mod compression;
mod control;
mod dma;
mod dtype;
mod envelope;
mod error;
#[cfg(test)]
mod fuzz;
mod gate;
mod grpc;
mod handoff;
mod health;
mod histogram;
mod http;
mod json;
mod ledger;
mod message;
mod models;
mod paced;
mod parameters;
mod pending;
mod process;
mod proto;
mod python;
mod quantiles;
mod refusals;
mod request;
mod restricted;
mod shape;
mod shm;
mod stamps;
mod strings;
mod threads;
mod tls;
mod wire;

#[pyo3::pymodule]
mod _wire {
    #[pymodule_export]
    use crate::{
        error::{WireError, error_table},
        handoff::{Batch, Buffer, Intake, Statistics, pack_strings, unpack_strings},
        histogram::histogram_bounds,
        process::Process,
        python::{Call, Wire, descriptors, now},
    };
}
