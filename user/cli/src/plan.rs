//! `landbridge plan broadcast`: trees, their times in each model, and the bounds, for an instance in a file.

use std::fmt::Write as _;
use std::io::Write;
use std::path::PathBuf;

use ::plan::{Algorithm, Effort, Instance, Model, Packing, Ports, Schedule, Tree};
use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};

/// Plan transfers over links that differ
#[derive(Debug, Args)]
pub(crate) struct PlanArgs {
    #[command(subcommand)]
    pub command: PlanCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum PlanCommand {
    Broadcast(BroadcastArgs),
}

/// Compare ways to broadcast a message over given links
#[derive(Debug, Args)]
#[command(
    long_about = "Compare ways to broadcast a message over given links.\n\n\
        FILE describes nodes, latencies and rates in JSON; docs/plan.md has its fields, the models of cost and the \
        algorithms. Prints the completion time of each algorithm's tree in each model, fastest first in MPPKT, the \
        model that fits gateways, the schedule that Landbridge would choose, and the rates that no tree or set of trees \
        can exceed. Nothing is sent.",
    after_help = "Examples:\n  landbridge plan broadcast links.json\n  \
        landbridge plan broadcast links.json --algorithm ecef_size   its tree, and its times\n  \
        landbridge plan broadcast links.json --json | jq .algorithms.tps_ecef.tree"
)]
pub(crate) struct BroadcastArgs {
    /// The instance
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// One algorithm, or all
    #[arg(long, value_name = "NAME|all", default_value = "all")]
    pub algorithm: String,
    /// Print as JSON
    #[arg(long)]
    pub json: bool,
}

/// Width of the longest bar in the table, in columns.
const BAR: f64 = 24.0;

/// Maximum number of trees in the chosen schedule: the limit for a broadcast between sites.
const MOST_TREES: usize = 64;

/// Limit for the linear programs: enough for the optimum of about 200 nodes.
const EFFORT: Effort = Effort { rounds: 4000, gap: 1e-9 };

pub(crate) fn plan(args: &PlanArgs) -> Result<i32> {
    match &args.command {
        PlanCommand::Broadcast(args) => broadcast(args),
    }
}

/// Plans, prints the result, and returns the exit code.
fn broadcast(args: &BroadcastArgs) -> Result<i32> {
    let algorithms = match args.algorithm.as_str() {
        "all" => Algorithm::ALL.to_vec(),
        name => vec![Algorithm::by_name(name)?],
    };
    let file = args.file.display();
    let text = std::fs::read_to_string(&args.file).with_context(|| format!("instance {file}"))?;
    let instance = Instance::from_json(&text).with_context(|| format!("instance {file}"))?;
    let results: Vec<Planned> = algorithms.into_iter().map(|algorithm| Planned::new(&instance, algorithm)).collect();
    let bounds = Bounds::new(&instance);
    let chosen = ::plan::choose(&instance, MOST_TREES);
    let mut out = crate::output::stdout();
    if args.json {
        writeln!(out, "{}", crate::json::object(as_json(&file.to_string(), &instance, &results, &bounds, &chosen))?)?;
    } else {
        out.write_all(as_text(&instance, &results, &bounds, &chosen).as_bytes())?;
    }
    Ok(0)
}

/// An algorithm's tree with its times in seconds, in the order of [`Model::ALL`], and its rate in bytes/s.
struct Planned {
    algorithm: Algorithm,
    tree: Tree,
    times: [f64; Model::ALL.len()],
    rate: f64,
}

impl Planned {
    fn new(instance: &Instance, algorithm: Algorithm) -> Planned {
        let tree = algorithm.build(instance);
        let times = Model::ALL.map(|model| model.completion(instance, &tree));
        let rate = ::plan::rate(instance, &tree, Ports::Many);
        Planned { algorithm, tree, times, rate }
    }
}

struct Bounds {
    one_port: Packing,
    multi_port: Packing,
    uplinks: f64,
    /// For few nodes: the best single tree in each of two models.
    optima: Vec<(Model, Tree, f64)>,
}

impl Bounds {
    fn new(instance: &Instance) -> Bounds {
        let optimum = |model| ::plan::optimum(instance, model).map(|(tree, time)| (model, tree, time));
        Bounds {
            one_port: ::plan::pack(instance, Ports::One, EFFORT),
            multi_port: ::plan::pack(instance, Ports::Many, EFFORT),
            uplinks: ::plan::uplink_bound(instance),
            optima: [Model::Bhat, Model::LogGp].into_iter().filter_map(optimum).collect(),
        }
    }
}

fn as_json(file: &str, instance: &Instance, results: &[Planned], bounds: &Bounds, chosen: &Schedule) -> Value {
    let mut algorithms = Map::new();
    for planned in results {
        let times = Model::ALL.iter().zip(planned.times).map(|(model, time)| (model.name().to_owned(), json!(time)));
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

/// Each node's parent; −1 for the root.
fn parents(tree: &Tree) -> Vec<i64> {
    tree.parents().iter().map(|parent| parent.map_or(-1, |node| node as i64)).collect()
}

fn as_text(instance: &Instance, results: &[Planned], bounds: &Bounds, chosen: &Schedule) -> String {
    let mut text = format!(
        "{} nodes, root {}, {} in {} packets\n\n",
        instance.nodes(),
        instance.root(),
        bytes(instance.message_bytes() as f64),
        instance.packets()
    );
    text += &table(results, bounds);
    if let [one] = results {
        text += "\n";
        text += &drawn(instance, one);
    }
    text += "\n";
    let rate = |packing: &Packing| {
        let gap = 1.0 - packing.rate / packing.upper_bound;
        let stopped = if gap > 1e-6 {
            format!(", at most {}/s: the search was stopped", bytes(packing.upper_bound))
        } else {
            String::new()
        };
        format!("{}/s with {}{stopped}", bytes(packing.rate), many(packing.trees.len()))
    };
    let mut row = |name: &str, value: String| {
        let _ = writeln!(text, "{name:38}  {value}");
    };
    row("chosen", format!("{} with {}", seconds(chosen.time), many(chosen.trees.len())));
    row("highest rate, uplinks and connections", rate(&bounds.multi_port));
    row("highest rate, one transfer at a time", rate(&bounds.one_port));
    row("uplinks and downlinks alone allow", format!("{}/s", bytes(bounds.uplinks)));
    for (model, _, time) in &bounds.optima {
        row(&format!("least time of a tree in {}", model.name()), seconds(*time));
    }
    text
}

fn many(trees: usize) -> String {
    if trees == 1 { "1 tree".to_owned() } else { format!("{trees} trees at once") }
}

/// One row for each algorithm, the fastest in MPPKT first, with a bar of its time in that model.
fn table(results: &[Planned], bounds: &Bounds) -> String {
    let last = Model::ALL.len() - 1;
    let mut rows: Vec<&Planned> = results.iter().collect();
    rows.sort_by(|a, b| a.times[last].total_cmp(&b.times[last]));
    let longest = rows.last().map_or(1.0, |planned| planned.times[last]);
    let width = rows.iter().map(|planned| planned.algorithm.name().len()).max().unwrap_or(0).max("algorithm".len());
    let mut text = format!("{:width$}", "algorithm");
    for model in Model::ALL {
        let _ = write!(text, "  {:>8}", model.name());
    }
    text += "  of bound\n";
    for planned in rows {
        let _ = write!(text, "{:width$}", planned.algorithm.name());
        for time in planned.times {
            let _ = write!(text, "  {:>8}", seconds(time));
        }
        let of_bound = 100.0 * planned.rate / bounds.multi_port.upper_bound;
        let bar = "█".repeat((BAR * planned.times[last] / longest).ceil() as usize);
        let _ = writeln!(text, "  {of_bound:6.0} %  {bar}");
    }
    text + "of bound: the rate of a long message over this tree, in parts of the highest rate below; bar: MPPKT\n"
}

/// Draws the tree as lines, with the rate and latency of each edge. Children are in the order in which they are served.
fn drawn(instance: &Instance, planned: &Planned) -> String {
    let children = planned.tree.children();
    let last = Model::ALL.len() - 1;
    let arrivals = Model::ALL[last].arrivals(instance, &planned.tree);
    let mut text = format!("{}\n", planned.tree.root());
    // Stack of (node, text before its line, true for its parent's last child); the next node is the last element.
    let mut waiting: Vec<(usize, String, bool)> = Vec::new();
    let push = |waiting: &mut Vec<(usize, String, bool)>, node: usize, before: &str| {
        let below = children[node].iter().enumerate().rev();
        waiting.extend(below.map(|(place, &child)| (child, before.to_owned(), place + 1 == children[node].len())));
    };
    push(&mut waiting, planned.tree.root(), "");
    while let Some((node, before, is_last)) = waiting.pop() {
        let parent = planned.tree.parent(node).unwrap_or_default();
        let rate = format!("{}/s", bytes(instance.bandwidth(parent, node)));
        let latency = seconds(instance.latency(parent, node));
        let branch = if is_last { "└─" } else { "├─" };
        let place = format!("{before}{branch} {node}");
        let _ = writeln!(text, "{place:24}  {rate:>12}  {latency:>8}  complete after {}", seconds(arrivals[node]));
        push(&mut waiting, node, &format!("{before}{} ", if is_last { "  " } else { "│ " }));
    }
    text
}

/// A time with three digits and a unit.
fn seconds(time: f64) -> String {
    match time {
        time if time >= 99.95 => format!("{time:.0} s"),
        time if time >= 0.9995 => format!("{:.*} s", if time < 9.995 { 2 } else { 1 }, time),
        time if time >= 0.999_5e-3 => format!("{:.*} ms", if time < 0.099_95 { 1 } else { 0 }, time * 1e3),
        time => format!("{:.1} µs", time * 1e6),
    }
}

/// A size with a unit of powers of 1024.
fn bytes(size: f64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut value = size;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    let digits = if unit == 0 || value >= 99.95 || value.fract() == 0.0 { 0 } else { 1 };
    format!("{value:.digits$} {}", units[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    const HAND: &str = include_str!("../../../core/plan/tests/vectors/v00_hand4.json");

    #[test]
    fn the_tree_is_drawn_with_its_arrivals() {
        let instance = Instance::from_json(HAND).unwrap();
        let planned = Planned::new(&instance, Algorithm::Binomial);
        let wanted = "0\n\
            ├─ 2                         1.0 KiB/s    4.00 s  complete after 5.90 s\n\
            │  └─ 3                      1.0 KiB/s    3.00 s  complete after 9.00 s\n\
            └─ 1                         1.0 KiB/s    1.00 s  complete after 3.00 s\n";
        assert_eq!(drawn(&instance, &planned), wanted);
    }

    #[test]
    fn the_fastest_is_first() {
        let instance = Instance::from_json(HAND).unwrap();
        let results: Vec<Planned> =
            [Algorithm::Flat, Algorithm::FefSize].map(|algorithm| Planned::new(&instance, algorithm)).into();
        let text = as_text(&instance, &results, &Bounds::new(&instance), &::plan::choose(&instance, MOST_TREES));
        assert!(text.find("fef_size").unwrap() < text.find("flat").unwrap(), "{text}");
        assert!(text.contains("highest rate, one transfer at a time"), "{text}");
    }
}
