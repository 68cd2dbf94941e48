//! The model versions that the doors know, and whether each can be asked now.
use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use parking_lot::RwLock;

use crate::{
    error::{Error, Result},
    pending::Intake,
};

enum State {
    Serving(Arc<Intake>),
    Unavailable,
}

#[derive(Default)]
pub(crate) struct Models {
    table: RwLock<HashMap<String, BTreeMap<i64, State>>>,
}

impl Models {
    /// From now on requests for this version go to `intake`; returns the one that it replaces.
    pub(crate) fn publish(&self, intake: Arc<Intake>) -> Option<Arc<Intake>> {
        let (model, version) = (intake.spec.model.clone(), intake.spec.version);
        let mut table = self.table.write();
        match table.entry(model).or_default().insert(version, State::Serving(intake)) {
            Some(State::Serving(previous)) => Some(previous),
            _ => None,
        }
    }

    /// The version is known and not ready: it loads, failed to, or was unloaded.
    pub(crate) fn withdraw(&self, model: &str, version: i64) {
        self.table.write().entry(model.into()).or_default().insert(version, State::Unavailable);
    }

    /// The model is not in the repository any more.
    pub(crate) fn forget(&self, model: &str) {
        self.table.write().remove(model);
    }

    /// The intake of a version, of the highest ready one for the empty string or "-1".
    ///
    /// # Errors
    /// `NotFound` for an unknown model or version, `Unavailable` for one that is not ready, `InvalidArgument` for a version
    /// that is no number.
    pub(crate) fn find(&self, model: &str, version: &str) -> Result<Arc<Intake>> {
        let table = self.table.read();
        let unknown = |what: String| Error::not_found(format!("Request for unknown model: {what}"));
        let versions = table.get(model).ok_or_else(|| unknown(format!("'{model}' is not found")))?;
        let Some(number) = parse_version(model, version)? else {
            let ready = versions.values().rev().find_map(|state| match state {
                State::Serving(intake) => Some(intake.clone()),
                State::Unavailable => None,
            });
            return ready.ok_or_else(|| unknown(format!("'{model}' has no available versions")));
        };
        match versions.get(&number) {
            Some(State::Serving(intake)) => Ok(intake.clone()),
            Some(State::Unavailable) => Err(Error::unavailable(format!(
                "Request for unknown model: '{model}' version {number} is not at ready state"
            ))),
            None => Err(unknown(format!("'{model}' version {number} is not found"))),
        }
    }

    /// All intakes that serve now.
    pub(crate) fn serving(&self) -> Vec<Arc<Intake>> {
        let table = self.table.read();
        let states = table.values().flat_map(BTreeMap::values);
        states
            .filter_map(|state| if let State::Serving(intake) = state { Some(intake.clone()) } else { None })
            .collect()
    }
}

/// `None`: the server chooses.
fn parse_version(model: &str, version: &str) -> Result<Option<i64>> {
    if version.is_empty() || version == "-1" {
        return Ok(None);
    }
    version.parse().map(Some).map_err(|_| {
        Error::invalid(format!(
            "unable to parse/determine model version for '{model}': '{version}' is not an integer"
        ))
    })
}
