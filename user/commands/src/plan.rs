//! `landbridge plan broadcast`: trees, their times in each model, and the bounds, for an instance in a file.

use std::path::Path;

use ::plan::{Algorithm, Effort, Instance, Model, Packing, Ports, Schedule, Tree};
use folder::{open_named, text_of};
use serde_json::{Map, Value, json};

use crate::error::{CommandError, Context, Result};

/// Maximum number of trees in the chosen schedule: the limit for a broadcast between sites.
const MOST_TREES: usize = 64;

/// Largest size of an instance's file, in bytes: two matrices of 4096 nodes, with 16 characters a number.
const MOST_BYTES: u64 = 512 << 20;

/// Limit for the linear programs: enough for the optimum of about 200 nodes.
const EFFORT: Effort = Effort { rounds: 4000, gap: 1e-9 };

/// The ways to broadcast a message over given links, with their times and rates.
pub struct Comparison {
    /// The instance's file, as typed.
    pub file: String,
    pub instance: Instance,
    pub results: Vec<PlannedTree>,
    pub bounds: Bounds,
    /// The schedule that Landbridge would choose.
    pub chosen: Schedule,
}

impl Comparison {
    /// Plans the instance in a file. `algorithm`: a name, or `all`.
    ///
    /// # Errors
    /// The algorithm is unknown, or the file does not describe an instance.
    pub fn of_file(file: &Path, algorithm: &str) -> Result<Comparison> {
        let algorithms = match algorithm {
            "all" => Algorithm::ALL.to_vec(),
            name => vec![Algorithm::by_name(name).map_err(CommandError::option)?],
        };
        let shown = file.display();
        let text = open_named(file).and_then(|file| text_of(file, MOST_BYTES));
        let text = text.with_context(|| format!("instance {shown}"))?;
        let instance = Instance::from_json(&text).with_context(|| format!("instance {shown}"))?;
        Ok(Comparison::new(shown.to_string(), instance, algorithms))
    }

    pub fn new(file: String, instance: Instance, algorithms: Vec<Algorithm>) -> Comparison {
        let results = algorithms.into_iter().map(|algorithm| PlannedTree::new(&instance, algorithm)).collect();
        let bounds = Bounds::new(&instance);
        let chosen = ::plan::choose(&instance, MOST_TREES);
        Comparison { file, instance, results, bounds, chosen }
    }

    /// All figures, as in `docs/json.md`.
    pub fn as_json(&self) -> Value {
        let Comparison { file, instance, results, bounds, chosen } = self;
        let mut algorithms = Map::new();
        for planned in results {
            let times =
                Model::ALL.iter().zip(planned.times).map(|(model, time)| (model.name().to_owned(), json!(time)));
            let completion: Map<String, Value> = times.collect();
            algorithms.insert(
                planned.algorithm.name().to_owned(),
                json!({ "tree": planned.tree, "completion": completion, "rate_Bps": planned.rate }),
            );
        }
        let packing = |packing: &Packing| {
            let trees: Vec<_> = packing.trees.iter().map(|(tree, _)| parents(tree)).collect();
            let weights: Vec<f64> = packing.trees.iter().map(|(_, rate)| *rate).collect();
            json!({
                "rate_Bps": packing.rate, "upper_bound_Bps": packing.upper_bound, "trees": trees, "weights_Bps": weights,
            })
        };
        let trees: Vec<_> = chosen.trees.iter().map(|(tree, share)| json!({ "tree": tree, "share": share })).collect();
        let mut answer = json!({
            "file": file, "nodes": instance.nodes(), "root": instance.root(), "message_bytes": instance.message_bytes(),
            "packet_bytes": instance.packet_bytes(), "algorithms": algorithms,
            "chosen": { "completion": chosen.time, "trees": trees, "pace_Bps": chosen.pace },
            "tps_bottleneck_set": ::plan::bottlenecks(instance), "lp_oneport": packing(&bounds.one_port),
            "lp_multiport_UDpair": packing(&bounds.multi_port), "uplink_bound_Bps": bounds.uplinks,
        });
        for (model, tree, time) in &bounds.optima {
            let schedule: Vec<(usize, usize)> = tree.edges().collect();
            answer[format!("optimum_{}", model.name())] = json!({ "completion": time, "schedule": schedule });
        }
        answer
    }
}

/// An algorithm's tree with its times in seconds, in the order of [`Model::ALL`], and its rate in bytes/s.
pub struct PlannedTree {
    pub algorithm: Algorithm,
    pub tree: Tree,
    pub times: [f64; Model::ALL.len()],
    pub rate: f64,
}

impl PlannedTree {
    pub fn new(instance: &Instance, algorithm: Algorithm) -> PlannedTree {
        let tree = algorithm.build(instance);
        let times = Model::ALL.map(|model| model.completion(instance, &tree));
        let rate = ::plan::rate(instance, &tree, Ports::Many);
        PlannedTree { algorithm, tree, times, rate }
    }
}

/// Rates that no tree or set of trees can exceed.
pub struct Bounds {
    pub one_port: Packing,
    pub multi_port: Packing,
    pub uplinks: f64,
    /// For few nodes: the best single tree in each of two models.
    pub optima: Vec<(Model, Tree, f64)>,
}

impl Bounds {
    pub fn new(instance: &Instance) -> Bounds {
        let optimum = |model| ::plan::optimum(instance, model).map(|(tree, time)| (model, tree, time));
        Bounds {
            one_port: ::plan::pack(instance, Ports::One, EFFORT),
            multi_port: ::plan::pack(instance, Ports::Many, EFFORT),
            uplinks: ::plan::uplink_bound(instance),
            optima: [Model::Bhat, Model::LogGp].into_iter().filter_map(optimum).collect(),
        }
    }
}

/// Each node's parent; −1 for the root.
fn parents(tree: &Tree) -> Vec<i64> {
    tree.parents().iter().map(|parent| parent.map_or(-1, |node| node as i64)).collect()
}
