//! Broadcasts through simulated networks: one line of JSON for each seed, cell (members and message size) and curve
//! (algorithm and mode). `benches/broadcast.py` runs it.
//!
//!     cargo run --release -p landbridge-simulation --example broadcast -- --cells 30x65536 --curves flat:block

#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::io::{Write, stdout};

use anyhow::{Context, Result, bail};
use clap::{Parser, ValueEnum};
use plan::{Algorithm, Instance, Tree};
use serde_json::json;
use simulation::{Measured, Rates, RelayMode, Scenario, Schedule, TcpSettings, Time, TransitStub, broadcast};

/// The most trees of `ours`.
const MOST_TREES: usize = 8;

#[derive(Parser)]
struct Arguments {
    /// Seeds, as FIRST-LAST: topology, members, traffic and losses.
    #[arg(long, default_value = "1-3")]
    seeds: String,
    /// Nodes of the topology: 220, 1000 or 10000.
    #[arg(long, default_value_t = 220)]
    nodes: usize,
    /// The rates of links.
    #[arg(long, value_enum, default_value_t = Spread::Uniform)]
    rates: Spread,
    /// Members and bytes of each broadcast, as MEMBERSxBYTES.
    #[arg(long, value_delimiter = ',', default_value = "30x65536")]
    cells: Vec<String>,
    /// Algorithm and mode, as NAME:MODE. Names are those of `plan::Algorithm`, `ttcc` (both its trees), `ours` (the
    /// chooser, up to 8 trees) and `ours_single` (the chooser, one tree); modes are block, acknowledged and packet.
    #[arg(long, value_delimiter = ',', default_value = "flat:packet,tps_fef:packet")]
    curves: Vec<String>,
    /// Constant-rate flows, and as many endless transfers, per ten members.
    #[arg(long, default_value_t = 3)]
    traffic: usize,
    /// TCP's window in bytes, of members and transfers.
    #[arg(long, default_value_t = 65_536)]
    window: u64,
    /// TCP's congestion window at the start, in segments.
    #[arg(long, default_value_t = 10)]
    initial: u32,
    /// Bytes of a packet in the planners' models.
    #[arg(long, default_value_t = 4096)]
    packet: u64,
    /// Limit of one broadcast, in seconds of virtual time.
    #[arg(long, default_value_t = 3000.0)]
    limit: f64,
}

#[derive(Clone, Copy, ValueEnum)]
enum Spread {
    /// All links of a kind alike.
    Uniform,
    /// Hosts and stub domains from 1 to 100 Mbit/s.
    Unlike,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let cells: Vec<(usize, u64)> = arguments.cells.iter().map(|text| cell(text)).collect::<Result<_>>()?;
    let curves: Vec<(&str, RelayMode)> = arguments.curves.iter().map(|text| curve(text)).collect::<Result<_>>()?;
    let (first, last) = pair::<u64>(&arguments.seeds, '-').context("--seeds wants FIRST-LAST")?;
    let members = cells.iter().map(|&(members, _)| members).max().unwrap_or(2);
    let tcp =
        TcpSettings { window_bytes: arguments.window, initial_segments: arguments.initial, ..TcpSettings::default() };
    let flows = (members * arguments.traffic).div_ceil(10);
    let scenario = Scenario {
        shape: TransitStub::of_size(arguments.nodes)?,
        rates: match arguments.rates {
            Spread::Uniform => Rates::uniform(),
            Spread::Unlike => Rates::unlike(),
        },
        members,
        constant_flows: flows,
        transfers: flows,
        tcp,
        warm_up_seconds: 4.0,
    };
    for seed in first..=last {
        let (mut network, hosts) = scenario.start(seed).with_context(|| format!("seed {seed}"))?;
        let measured = Measured::between(&mut network, &hosts).with_context(|| format!("seed {seed}"))?;
        for &(count, bytes) in &cells {
            let links = measured.links(count, &tcp);
            let instance = Instance::new(links, 0, bytes, arguments.packet.min(bytes))?;
            for &(name, mode) in &curves {
                let schedule = schedule(name, &instance)?;
                let limit = Time::from_seconds(arguments.limit);
                let outcome = broadcast(&mut network.clone(), &hosts[..count], &schedule, mode, tcp, limit)
                    .with_context(|| format!("seed {seed}, {count} members, {bytes} bytes, {name}:{}", mode.name()))?;
                let line = json!({
                    "seed": seed, "members": count, "bytes": bytes, "algorithm": name, "mode": mode.name(),
                    "seconds": outcome.completion(), "timeouts": outcome.timeouts,
                    "retransmitted": outcome.retransmitted, "trees": trees(&schedule),
                });
                writeln!(stdout(), "{line}")?;
            }
        }
    }
    Ok(())
}

fn schedule(name: &str, instance: &Instance) -> Result<Schedule> {
    let bytes = instance.message_bytes();
    Ok(match name {
        "ttcc" => {
            let trees = [Algorithm::EcefSize, Algorithm::TtccSecond].map(|algorithm| algorithm.build(instance));
            Schedule::Copies(trees.into(), bytes)
        }
        "ours" => Schedule::Parts(parts(plan::choose(instance, MOST_TREES).trees, bytes)),
        "ours_single" => Schedule::Parts(parts(plan::choose(instance, 1).trees, bytes)),
        _ => Schedule::Parts(vec![(Algorithm::by_name(name)?.build(instance), bytes)]),
    })
}

/// Whole bytes for each tree; the rest left by rounding goes to the first, whose share is the largest.
fn parts(trees: Vec<(Tree, f64)>, bytes: u64) -> Vec<(Tree, u64)> {
    let mut parts: Vec<(Tree, u64)> =
        trees.into_iter().map(|(tree, share)| (tree, (share * bytes as f64) as u64)).collect();
    parts.retain(|&(_, bytes)| bytes > 0);
    let given: u64 = parts.iter().map(|(_, bytes)| bytes).sum();
    if let Some((_, first)) = parts.first_mut() {
        *first += bytes - given;
    }
    parts
}

fn trees(schedule: &Schedule) -> usize {
    match schedule {
        Schedule::Parts(parts) => parts.len(),
        Schedule::Copies(trees, _) => trees.len(),
    }
}

fn cell(text: &str) -> Result<(usize, u64)> {
    let (members, bytes) = pair::<u64>(text, 'x').with_context(|| format!("--cells {text}: wants MEMBERSxBYTES"))?;
    Ok((usize::try_from(members)?, bytes))
}

fn pair<T: std::str::FromStr>(text: &str, between: char) -> Option<(T, T)> {
    let (one, other) = text.split_once(between)?;
    Some((one.parse().ok()?, other.parse().ok()?))
}

fn curve(text: &str) -> Result<(&str, RelayMode)> {
    let Some((name, mode)) = text.split_once(':') else { bail!("--curves {text}: wants NAME:MODE") };
    let found = RelayMode::ALL.into_iter().find(|known| known.name() == mode);
    Ok((
        name,
        found.with_context(|| format!("--curves {text}: no mode {mode}; there are block, acknowledged, packet"))?,
    ))
}
