//! Compiles `proto/` once for both languages: Rust gets types for the inference messages, which it reads and writes
//! itself; Python gets the descriptors of everything (see `descriptors` in lib.rs).
use std::{env, fs, path::PathBuf};

use prost::Message;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let everything = protox::compile(["service.proto"], ["proto"])?;
    fs::write(out.join("descriptors.bin"), everything.encode_to_vec())?;
    let messages = protox::compile(["infer.proto"], ["proto"])?;
    prost_build::Config::new().bytes(["."]).compile_fds(messages)?;
    Ok(())
}
