//! The algorithms by name.

use thiserror::Error;

use crate::greedy::{self, Ahead};
use crate::instance::Instance;
use crate::tps::{self, First};
use crate::tree::Tree;
use crate::{arborescence, prune, simple};

/// An algorithm that builds one tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Algorithm {
    Flat,
    Binomial,
    Spoc,
    Fnf,
    FefSize,
    FefLatency,
    EcefSize,
    EcefLatency,
    EcefLeastAhead,
    EcefMeanAhead,
    EcefGap,
    ShortestPaths,
    Hlot,
    TtccSecond,
    TpsEcef,
    TpsFef,
    TpsShortestPaths,
    TpsWalk,
    TpsReady,
    TpsOneBottleneck,
    WidestChain,
    GrowLeastOutDegree,
    PruneRefined,
    PruneSimple,
    MinimumArborescence,
}

/// No algorithm has this name.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("no algorithm is named `{name}`; there are {}", names())]
pub struct UnknownAlgorithm {
    /// The name.
    pub name: String,
}

fn names() -> String {
    Algorithm::ALL.map(Algorithm::name).join(", ")
}

impl Algorithm {
    /// All algorithms, in the order of the documentation.
    pub const ALL: [Algorithm; 25] = [
        Algorithm::Flat,
        Algorithm::Binomial,
        Algorithm::Spoc,
        Algorithm::Fnf,
        Algorithm::FefSize,
        Algorithm::FefLatency,
        Algorithm::EcefSize,
        Algorithm::EcefLatency,
        Algorithm::EcefLeastAhead,
        Algorithm::EcefMeanAhead,
        Algorithm::EcefGap,
        Algorithm::ShortestPaths,
        Algorithm::Hlot,
        Algorithm::TtccSecond,
        Algorithm::TpsEcef,
        Algorithm::TpsFef,
        Algorithm::TpsShortestPaths,
        Algorithm::TpsWalk,
        Algorithm::TpsReady,
        Algorithm::TpsOneBottleneck,
        Algorithm::WidestChain,
        Algorithm::GrowLeastOutDegree,
        Algorithm::PruneRefined,
        Algorithm::PruneSimple,
        Algorithm::MinimumArborescence,
    ];

    /// The name in output and on the command line. `_rec` marks a reconstruction of a text that was not available.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Algorithm::Flat => "flat",
            Algorithm::Binomial => "binomial",
            Algorithm::Spoc => "spoc_rec",
            Algorithm::Fnf => "fnf",
            Algorithm::FefSize => "fef_size",
            Algorithm::FefLatency => "fef_lat",
            Algorithm::EcefSize => "ecef_size",
            Algorithm::EcefLatency => "ecef_lat",
            Algorithm::EcefLeastAhead => "ecef_la_min",
            Algorithm::EcefMeanAhead => "ecef_la_avg",
            Algorithm::EcefGap => "ecef_gap",
            Algorithm::ShortestPaths => "spt",
            Algorithm::Hlot => "hlot_rec",
            Algorithm::TtccSecond => "ttcc_rec_tree2",
            Algorithm::TpsEcef => "tps_ecef",
            Algorithm::TpsFef => "tps_fef",
            Algorithm::TpsShortestPaths => "tps_spt",
            Algorithm::TpsWalk => "tps_walk",
            Algorithm::TpsReady => "tps_ready",
            Algorithm::TpsOneBottleneck => "tps_k1",
            Algorithm::WidestChain => "widest_chain",
            Algorithm::GrowLeastOutDegree => "grow_min_outdeg",
            Algorithm::PruneRefined => "prune_refined",
            Algorithm::PruneSimple => "prune_simple",
            Algorithm::MinimumArborescence => "min_arborescence",
        }
    }

    /// The algorithm of this name.
    ///
    /// # Errors
    /// [`UnknownAlgorithm`] if no algorithm has this name; its message lists the known names.
    pub fn by_name(name: &str) -> Result<Algorithm, UnknownAlgorithm> {
        let found = Algorithm::ALL.into_iter().find(|algorithm| algorithm.name() == name);
        found.ok_or_else(|| UnknownAlgorithm { name: name.to_owned() })
    }

    /// Builds the algorithm's tree.
    #[must_use]
    pub fn build(self, instance: &Instance) -> Tree {
        let latency = &instance.links().latency;
        match self {
            Algorithm::Flat => simple::flat(instance),
            Algorithm::Binomial => simple::binomial(instance),
            Algorithm::Spoc => simple::spoc(instance),
            Algorithm::Fnf => simple::fastest_node_first(instance),
            Algorithm::FefSize => greedy::fastest_edge_first(instance, &instance.costs()),
            Algorithm::FefLatency => greedy::fastest_edge_first(instance, latency),
            Algorithm::EcefSize => greedy::earliest_completing_edge_first(instance, &instance.costs(), Ahead::Nothing),
            Algorithm::EcefLatency => greedy::earliest_completing_edge_first(instance, latency, Ahead::Nothing),
            Algorithm::EcefLeastAhead => {
                greedy::earliest_completing_edge_first(instance, &instance.costs(), Ahead::Least)
            }
            Algorithm::EcefMeanAhead => {
                greedy::earliest_completing_edge_first(instance, &instance.costs(), Ahead::Mean)
            }
            Algorithm::EcefGap => greedy::earliest_completing_edge_with_gap(instance),
            Algorithm::ShortestPaths => greedy::shortest_paths(instance),
            Algorithm::Hlot => greedy::latency_optimal(instance),
            Algorithm::TtccSecond => greedy::second_disjoint_tree(instance),
            Algorithm::TpsEcef => tps::two_phases(instance, First::Ecef),
            Algorithm::TpsFef => tps::two_phases(instance, First::Fef),
            Algorithm::TpsShortestPaths => tps::two_phases(instance, First::ShortestPaths),
            Algorithm::TpsWalk => tps::two_phases(instance, First::Walk),
            Algorithm::TpsReady => tps::with_ready_times(instance),
            Algorithm::TpsOneBottleneck => tps::one_bottleneck(instance),
            Algorithm::WidestChain => simple::widest_chain(instance),
            Algorithm::GrowLeastOutDegree => greedy::minimum_out_degree(instance),
            Algorithm::PruneRefined => prune::refined(instance),
            Algorithm::PruneSimple => prune::simple(instance),
            Algorithm::MinimumArborescence => arborescence::cheapest_tree(instance),
        }
    }
}
