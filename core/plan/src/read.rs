//! Instances in JSON: the fields, and checks whose errors name the place of the wrong value.
//!
//! `{"N", "root", "message_bytes", "packet_bytes", "os", "or_", "latency_s", "bandwidth_Bps", "uplink_Bps",
//! "downlink_Bps"}`; seconds, bytes, bytes/s; matrices by sender, then receiver; the diagonal of `bandwidth_Bps` is
//! null. `os` and `or_` default to 0. Other fields are ignored.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;

use crate::instance::{Instance, InstanceError, MOST_NODES, NOT_NEGATIVE, NetworkLinks, POSITIVE, value};
use crate::matrix::Matrix;

const FIELDS: [&str; 10] = [
    "N",
    "root",
    "message_bytes",
    "packet_bytes",
    "os",
    "or_",
    "latency_s",
    "bandwidth_Bps",
    "uplink_Bps",
    "downlink_Bps",
];

impl Instance {
    /// Reads an instance. `NaN`, `Infinity` and `-Infinity`, which some programs write, are parsed and then refused
    /// with their place.
    ///
    /// # Errors
    /// [`InstanceError`] names the field, the row and the column, and the value.
    pub fn from_json(text: &str) -> Result<Instance, InstanceError> {
        let fields: Fields = serde_json::from_str(&quoted(text)).map_err(|error| InstanceError::Json {
            line: error.line(),
            column: error.column(),
            what: error.to_string().split(" at line ").next().unwrap_or_default().to_owned(),
        })?;
        if let Some(field) = fields.twice {
            return Err(InstanceError::Twice { field });
        }
        let field = |name: &'static str| {
            let place = FIELDS.iter().position(|field| *field == name);
            place.and_then(|place| fields.values[place].as_ref()).ok_or(InstanceError::Missing { field: name })
        };
        let nodes = whole(field("N")?, "N", "a number of nodes from 2 to 4096")? as usize;
        if !(2..=MOST_NODES).contains(&nodes) {
            return Err(value("N".to_owned(), nodes, "a number of nodes from 2 to 4096"));
        }
        let root = match field("root")? {
            Value::Array(several) if several.len() > 1 => {
                let found = Value::Array(several.clone()).to_string();
                return Err(InstanceError::TwoRoots { place: "root".to_owned(), found });
            }
            one => whole(one, "root", "the number of a node: they begin with 0")? as usize,
        };
        if root >= nodes {
            return Err(value("root".to_owned(), root, "the number of a node: they begin with 0"));
        }
        let bytes = |name| whole(field(name)?, name, "a whole number of bytes from 1 to 2^53");
        let overhead = |name| match field(name) {
            Ok(found) => number(found, || name.to_owned(), NOT_NEGATIVE),
            Err(_) => Ok(0.0),
        };
        let latency = matrix(field("latency_s")?, "latency_s", nodes, |found, place, i, j| match found {
            Value::Null if i == j => Ok(0.0),
            found => number(found, place, NOT_NEGATIVE),
        })?;
        let links = NetworkLinks {
            latency,
            bandwidth: rates(field("bandwidth_Bps")?, nodes, root)?,
            uplink: limits(field("uplink_Bps")?, "uplink_Bps", nodes)?,
            downlink: limits(field("downlink_Bps")?, "downlink_Bps", nodes)?,
        };
        Instance::new(links, root, bytes("message_bytes")?, bytes("packet_bytes")?)?
            .with_overheads(overhead("os")?, overhead("or_")?)
    }
}

/// The fields of an instance, before they are checked.
#[derive(Default)]
struct Fields {
    values: [Option<Value>; FIELDS.len()],
    twice: Option<String>,
}

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Fields, D::Error> {
        struct ByName;
        impl<'de> Visitor<'de> for ByName {
            type Value = Fields;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("an object with the fields of an instance")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Fields, M::Error> {
                let mut fields = Fields::default();
                while let Some(name) = map.next_key::<String>()? {
                    match FIELDS.iter().position(|field| *field == name) {
                        Some(place) => {
                            if fields.values[place].replace(map.next_value()?).is_some() {
                                fields.twice.get_or_insert(name);
                            }
                        }
                        None => {
                            map.next_value::<serde::de::IgnoredAny>()?;
                        }
                    }
                }
                Ok(fields)
            }
        }
        deserializer.deserialize_map(ByName)
    }
}

/// The text with bare `NaN`, `Infinity` and `-Infinity` turned into strings; line numbers stay the same.
fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let (mut rest, mut in_string) = (text, false);
    while let Some(next) = rest.chars().next() {
        let word = ["NaN", "-Infinity", "Infinity"].into_iter().find(|word| !in_string && rest.starts_with(word));
        let taken = match (word, next) {
            (Some(word), _) => word.len(),
            (None, '\\') if in_string => 1 + rest[1..].chars().next().map_or(0, char::len_utf8),
            (None, next) => next.len_utf8(),
        };
        in_string ^= next == '"';
        match word {
            Some(word) => out.extend(["\"", word, "\""]),
            None => out.push_str(&rest[..taken]),
        }
        rest = &rest[taken..];
    }
    out
}

fn whole(found: &Value, place: &str, wanted: &'static str) -> Result<u64, InstanceError> {
    let number = found.as_u64().or_else(|| {
        let number = found.as_f64()?;
        (number.fract() == 0.0 && (0.0..9e15).contains(&number)).then_some(number as u64)
    });
    number.ok_or_else(|| value(place.to_owned(), shown(found), wanted))
}

fn number(found: &Value, place: impl Fn() -> String, wanted: &'static str) -> Result<f64, InstanceError> {
    found.as_f64().ok_or_else(|| value(place(), shown(found), wanted))
}

/// At most 40 characters of a value, for an error message.
fn shown(found: &Value) -> String {
    let text = match found {
        Value::String(text) => text.clone(),
        found => found.to_string(),
    };
    if text.chars().count() <= 40 { text } else { text.chars().take(39).chain(['…']).collect() }
}

fn list<'a>(found: &'a Value, place: &str, nodes: usize) -> Result<&'a [Value], InstanceError> {
    let entries = found.as_array().ok_or_else(|| value(place.to_owned(), shown(found), "a list"))?;
    if entries.len() == nodes {
        Ok(entries)
    } else {
        Err(InstanceError::Length { place: place.to_owned(), found: entries.len(), wanted: nodes })
    }
}

fn limits(found: &Value, name: &str, nodes: usize) -> Result<Vec<f64>, InstanceError> {
    let entries = list(found, name, nodes)?.iter().enumerate();
    entries.map(|(node, found)| number(found, || format!("{name}[{node}]"), POSITIVE)).collect()
}

fn matrix(
    found: &Value,
    name: &str,
    nodes: usize,
    cell: impl Fn(&Value, &dyn Fn() -> String, usize, usize) -> Result<f64, InstanceError>,
) -> Result<Matrix, InstanceError> {
    let mut result = Matrix::from_fn(nodes, |_, _| 0.0);
    for (i, row) in list(found, name, nodes)?.iter().enumerate() {
        for (j, found) in list(row, &format!("{name}[{i}]"), nodes)?.iter().enumerate() {
            result[(i, j)] = cell(found, &|| format!("{name}[{i}][{j}]"), i, j)?;
        }
    }
    Ok(result)
}

/// The matrix of rates. A node that no positive rate reaches is reported as unreachable, before any null entry is
/// reported.
fn rates(found: &Value, nodes: usize, root: usize) -> Result<Matrix, InstanceError> {
    let rates = matrix(found, "bandwidth_Bps", nodes, |found, place, i, j| match found {
        Value::Null => Ok(0.0),
        _ if i == j => Ok(0.0),
        found => number(found, place, POSITIVE)
            .and_then(|rate| if rate < 0.0 { Err(value(place(), rate, POSITIVE)) } else { Ok(rate) }),
    })?;
    let mut reached = vec![false; nodes];
    let mut waiting = vec![root];
    reached[root] = true;
    while let Some(i) = waiting.pop() {
        for j in 0..nodes {
            if !reached[j] && rates[(i, j)] > 0.0 {
                reached[j] = true;
                waiting.push(j);
            }
        }
    }
    if let Some(node) = reached.iter().position(|reached| !reached) {
        return Err(InstanceError::Unreachable { node, root });
    }
    let entry = |i: usize, j: usize| found.get(i).and_then(|row| row.get(j)).is_some_and(Value::is_null);
    let pairs = (0..nodes).flat_map(|i| (0..nodes).map(move |j| (i, j)));
    match pairs.filter(|(i, j)| i != j).find(|&(i, j)| entry(i, j)) {
        Some((sender, receiver)) => Err(InstanceError::NoRate { sender, receiver }),
        None => Ok(rates),
    }
}
