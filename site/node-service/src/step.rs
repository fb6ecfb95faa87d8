//! A step that a hook has carried out as a job's user: a transfer, a check, a look or a removal. To the service it is a
//! line.

use std::fmt::Display;

use serde::{Deserialize, Serialize};
use thiserror::Error;
use types::UntrustedText;

use crate::client::CallError;

/// A step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Step {
    /// Moves files as `landbridge stage move` does.
    Move { from: StepEnd, to: StepEnd, rate: Option<String>, harm: Option<String>, other_owner: bool },
    /// Checks whether a transfer with these sources and targets can begin. Nothing is moved. Its output is [`Checked`]
    /// in JSON.
    Check { sources: Vec<StepEnd>, targets: Vec<StepEnd> },
    /// Finds the nodes on which something exists at this path. Its output is a list of them in JSON.
    Look { nodes: Vec<String>, path: String },
    /// Removes these paths on these nodes, complete or not. Its output is a list of [`Kept`] in JSON.
    Remove { nodes: Vec<String>, paths: Vec<String> },
}

/// A node on which a removal failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kept {
    pub node: String,
    pub problem: UntrustedText,
}

/// The result of a check. A place in neither list is usable.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Checked {
    /// Reasons why places are unusable, each with its place.
    pub unusable: Vec<UntrustedText>,
    /// Reasons why places could not be checked.
    pub unknown: Vec<UntrustedText>,
}

/// Reasons for a step having no result.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StepError {
    /// The system refuses a resource, so the node service was not called.
    #[error("{0}")]
    System(std::io::Error),
    #[error(transparent)]
    Call(#[from] CallError),
    /// The step failed without a message.
    #[error("exit status {0}")]
    Status(i32),
    /// The step failed with these lines.
    #[error("{}", joined(.lines))]
    Failed { lines: Vec<UntrustedText> },
    /// The step succeeded, but its output has another form.
    #[error("{step} {path}: {source}")]
    Output { step: &'static str, path: String, source: serde_json::Error },
}

/// An end of a transfer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum StepEnd {
    /// A place as the user wrote it; it has a site.
    Place(String),
    /// A path on nodes of this cluster.
    Nodes { nodes: Vec<String>, path: String },
}

impl StepEnd {
    /// The place in the form that `stage move` accepts. `site`: the user's name for this cluster.
    pub fn typed(&self, site: &str) -> String {
        match self {
            StepEnd::Place(place) => place.clone(),
            StepEnd::Nodes { nodes, path } => format!("{site}/{}:{path}", nodes.join(",")),
        }
    }
}

/// Joins several messages to one, in their order.
pub(crate) fn joined<T: Display>(messages: &[T]) -> String {
    messages.iter().map(T::to_string).collect::<Vec<_>>().join("; ")
}
