//! What a hook has done as a job's user: one transfer, a look, or a removal. The service knows it as a line.

use serde::{Deserialize, Serialize};
use types::UntrustedText;

/// A step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Step {
    /// `landbridge stage move`.
    Move { from: End, to: End, rate: Option<String>, harm: Option<String>, other_owner: bool },
    /// Can a transfer begin that has these sources and targets? Nothing is moved. Its output is [`Checked`] in JSON.
    Check { sources: Vec<End>, targets: Vec<End> },
    /// On which of these nodes is something at this path? Its output is a list in JSON.
    Look { nodes: Vec<String>, path: String },
    /// Removes what is at these paths on these nodes, complete or not. Its output is a list in JSON of [`Kept`].
    Remove { nodes: Vec<String>, paths: Vec<String> },
}

/// A node on which something could not be removed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kept {
    pub node: String,
    pub problem: UntrustedText,
}

/// What a check has found. What is in neither list is usable.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Checked {
    /// Why places cannot be what they shall be, each with its place.
    pub unusable: Vec<UntrustedText>,
    /// Why nobody knows of other places.
    pub unknown: Vec<UntrustedText>,
}

/// An end of a transfer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum End {
    /// As the user wrote it; it has a site.
    Place(String),
    /// A path on nodes of this cluster.
    Nodes { nodes: Vec<String>, path: String },
}

impl End {
    /// A place as `stage move` takes it. `site`: the name that the user has for this cluster.
    pub fn typed(&self, site: &str) -> String {
        match self {
            End::Place(place) => place.clone(),
            End::Nodes { nodes, path } => format!("{site}/{}:{path}", nodes.join(",")),
        }
    }
}
