//! `landbridge plan broadcast`: trees, their times in each model, and the bounds, for an instance in a file.

use std::fmt::Write as _;
use std::io::Write;
use std::path::PathBuf;

use ::plan::{Instance, Model, Packing};
use anyhow::Result;
use clap::{Args, Subcommand};
use commands::plan::{Bounds, Comparison, PlannedTree};
use types::quantity::counted;

use crate::quantity::binary_digits;

/// Plan transfers over links of different speed
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

pub(crate) fn plan(args: &PlanArgs) -> Result<i32> {
    match &args.command {
        PlanCommand::Broadcast(args) => broadcast(args),
    }
}

/// Plans, prints the result, and returns the exit code.
fn broadcast(args: &BroadcastArgs) -> Result<i32> {
    let comparison = Comparison::of_file(&args.file, &args.algorithm)?;
    let mut out = crate::output::stdout();
    if args.json {
        writeln!(out, "{}", crate::json::object(comparison.as_json())?)?;
    } else {
        out.write_all(as_text(&comparison).as_bytes())?;
    }
    Ok(0)
}

fn as_text(Comparison { instance, results, bounds, chosen, .. }: &Comparison) -> String {
    let mut text = format!(
        "{}, root {}, {} in {}\n\n",
        counted(instance.nodes(), "node"),
        instance.root(),
        binary_digits(instance.message_bytes() as f64),
        counted(instance.packets(), "packet")
    );
    text += &table(results, bounds);
    if let [one] = &results[..] {
        text += "\n";
        text += &drawn(instance, one);
    }
    text += "\n";
    let rate = |packing: &Packing| {
        let gap = 1.0 - packing.rate / packing.upper_bound;
        let stopped = if gap > 1e-6 {
            format!(", at most {}/s: the search was stopped", binary_digits(packing.upper_bound))
        } else {
            String::new()
        };
        format!("{}/s with {}{stopped}", binary_digits(packing.rate), many(packing.trees.len()))
    };
    let mut row = |name: &str, value: String| {
        let _ = writeln!(text, "{name:38}  {value}");
    };
    row("chosen", format!("{} with {}", seconds(chosen.time), many(chosen.trees.len())));
    row("highest rate, uplinks and connections", rate(&bounds.multi_port));
    row("highest rate, one transfer at a time", rate(&bounds.one_port));
    row("uplinks and downlinks alone allow", format!("{}/s", binary_digits(bounds.uplinks)));
    for (model, _, time) in &bounds.optima {
        row(&format!("least time of a tree in {}", model.name()), seconds(*time));
    }
    text
}

fn many(trees: usize) -> String {
    if trees == 1 { "1 tree".to_owned() } else { format!("{trees} trees at once") }
}

/// One row for each algorithm, the fastest in MPPKT first, with a bar of its time in that model.
fn table(results: &[PlannedTree], bounds: &Bounds) -> String {
    let last = Model::ALL.len() - 1;
    let mut rows: Vec<&PlannedTree> = results.iter().collect();
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
fn drawn(instance: &Instance, planned: &PlannedTree) -> String {
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
        let rate = format!("{}/s", binary_digits(instance.bandwidth(parent, node)));
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

#[cfg(test)]
mod tests {
    use super::*;
    use ::plan::Algorithm;

    const HAND: &str = include_str!("../../../core/plan/tests/vectors/v00_hand4.json");

    #[test]
    fn the_tree_is_drawn_with_its_arrivals() {
        let instance = Instance::from_json(HAND).unwrap();
        let planned = PlannedTree::new(&instance, Algorithm::Binomial);
        let wanted = "0\n\
            ├─ 2                         1.0 KiB/s    4.00 s  complete after 5.90 s\n\
            │  └─ 3                      1.0 KiB/s    3.00 s  complete after 9.00 s\n\
            └─ 1                         1.0 KiB/s    1.00 s  complete after 3.00 s\n";
        assert_eq!(drawn(&instance, &planned), wanted);
    }

    #[test]
    fn the_fastest_is_first() {
        let instance = Instance::from_json(HAND).unwrap();
        let algorithms = vec![Algorithm::Flat, Algorithm::FefSize];
        let text = as_text(&Comparison::new("hand".to_owned(), instance, algorithms));
        assert!(text.find("fef_size").unwrap() < text.find("flat").unwrap(), "{text}");
        assert!(text.contains("highest rate, one transfer at a time"), "{text}");
    }
}
