//! Ranks of a job that share bytes along given trees of sites, and print the times of arrival. `landbridge run` starts
//! it like any program; it needs no MPI:
//!
//! `share stream TREES TO BYTES COUNT`: rank 0 sends COUNT shares of BYTES bytes, two at a time. TREES are edges
//! between sites' numbers, such as `0-1,1-2;0-2,2-1`, each tree with a weight if `*2.5` follows it. TO: `firsts`, the
//! first rank of each other site; `others`, all ranks there; or ranks' numbers. Each rank prints a JSON object: the
//! times at which it began and at which each share was complete there, in seconds of the machine's monotonic clock, and
//! the bytes that arrived in each tenth of a second since it began.
//!
//! `share storm SEED COUNT`: COUNT random shares of random ranks along random trees, and messages between them.
//!
//! A wrong byte, a failure, and 60 s without any completion end a rank with an error.

#![allow(clippy::print_stdout, clippy::print_stderr, clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use endpoint::operation::{CompleteWhen, Match, OperationKind, RecvOp, SendOp};
use endpoint::{Completion, Config, Endpoint, PeerId, ShareOp, ShareTree, UserData};
use memory::{Buffer, Regions};
use types::{Address, Identity, Instance, Rank, Roster, SiteId, Slot};

/// Shares of a stream that are in progress at a time: at the root, and awaited at a receiver.
const IN_PROGRESS: usize = 2;
const AWAITED: usize = 4;
/// Maximum number of steps of a storm in which a rank takes part at a time.
const STEPS: usize = 8;
const PATIENCE: Duration = Duration::from_secs(60);
const BUCKET_S: f64 = 0.1;

fn seconds() -> f64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as f64 + now.tv_nsec as f64 * 1e-9
}

struct Program {
    endpoint: Endpoint,
    roster: Roster,
    rank: usize,
    heard: Instant,
}

impl Program {
    fn open() -> Result<Program, Box<dyn Error>> {
        let lookup = |name: &str| match name {
            "LANDBRIDGE_SECRET" => {
                let descriptor = std::env::var("LANDBRIDGE_SECRET_FD").ok()?;
                std::fs::read_to_string(format!("/proc/self/fd/{descriptor}")).ok()
            }
            _ => std::env::var(name).ok(),
        };
        let config = Config::from_env(lookup)?;
        let job = config.job.clone().ok_or("not in a job: start it by `landbridge run`")?;
        let endpoint = Endpoint::open(config, 0, Arc::new(Regions::default()))?;
        Ok(Program { endpoint, roster: job.roster, rank: job.rank.0 as usize, heard: Instant::now() })
    }

    fn site(&self, rank: usize) -> usize {
        usize::from(self.roster.place(Rank(rank as u32)).unwrap().site.0)
    }

    fn size(&self) -> usize {
        self.roster.size() as usize
    }

    fn sites(&self) -> usize {
        self.roster.sites().len()
    }

    /// A rank at another site.
    fn peer(&mut self, rank: usize) -> PeerId {
        let slot = Slot::rank(Rank(rank as u32), Instance(0)).unwrap();
        let identity = Identity { site: SiteId(self.site(rank) as u16), slot };
        let socket = "0.0.0.0:0".parse().unwrap();
        let own = self.endpoint.address();
        self.endpoint.peer(Address { socket, identity, ..own })
    }

    /// The next completion; `None`: there is none within a moment.
    fn next(&mut self) -> Result<Option<Completion>, Box<dyn Error>> {
        let mut next = || self.endpoint.next_share_completion().or_else(|| self.endpoint.next_completion());
        let found = next();
        if found.is_none() && !self.endpoint.progress() {
            self.endpoint.wait(Duration::from_millis(5));
        }
        let Some(done) = found else {
            let late = self.heard.elapsed() > PATIENCE;
            return if late { Err(format!("rank {}: nothing completes", self.rank).into()) } else { Ok(None) };
        };
        self.heard = Instant::now();
        match &done.result {
            Ok(()) => Ok(Some(done)),
            Err(failure) => Err(format!("rank {}: {:?}: {failure}", self.rank, done.kind).into()),
        }
    }

    fn share(&mut self, key: u64, to: &[usize], bytes: Vec<u8>, trees: &[ShareTree]) -> Result<(), Box<dyn Error>> {
        let to = to.iter().map(|rank| self.peer(*rank)).collect();
        let user = UserData { context: key as usize, flags: 0 };
        let op = ShareOp { key, to, buffer: Buffer::owned(bytes), trees: trees.to_vec(), user };
        Ok(self.endpoint.share(op)?)
    }

    fn receive(&mut self, root: usize, key: u64, length: usize) -> Result<(), Box<dyn Error>> {
        let (from, user) = (self.peer(root), UserData { context: key as usize, flags: 0 });
        let buffer = Buffer::owned(vec![0; length]);
        Ok(self.endpoint.receive_share(from, key, buffer, user)?)
    }

    /// Checks that a completion has the bytes with this number.
    fn check(&self, done: &Completion, pattern: &Pattern, number: u64, length: usize) -> Result<(), Box<dyn Error>> {
        let whole = done.length as usize == length;
        let buffer = done.buffer.as_ref().filter(|_| whole);
        if buffer.is_some_and(|buffer| pattern.is(number, &buffer.to_vec(0..length))) {
            return Ok(());
        }
        Err(format!("rank {}: number {number} arrives with other bytes, or {} of {length}", self.rank, done.length)
            .into())
    }
}

/// Bytes that differ from number to number.
struct Pattern(Vec<u8>);

impl Pattern {
    fn new(most: usize) -> Pattern {
        Pattern((0..most).map(|at| (at.wrapping_mul(31) ^ (at >> 8) ^ (at >> 16)) as u8).collect())
    }

    fn of(&self, number: u64, length: usize) -> Vec<u8> {
        let mut bytes = self.0[..length].to_vec();
        let count = length.min(8);
        bytes[..count].copy_from_slice(&number.to_le_bytes()[..count]);
        bytes
    }

    fn is(&self, number: u64, bytes: &[u8]) -> bool {
        let count = bytes.len().min(8);
        bytes[..count] == number.to_le_bytes()[..count] && bytes[count..] == self.0[count..bytes.len()]
    }
}

fn parse_tree(text: &str) -> Option<ShareTree> {
    let (edges, weight) = text.split_once('*').unwrap_or((text, "1"));
    let edge = |edge: &str| {
        let (above, site) = edge.split_once('-')?;
        Some((SiteId(above.parse().ok()?), SiteId(site.parse().ok()?)))
    };
    Some(ShareTree { edges: edges.split(',').map(edge).collect::<Option<_>>()?, weight: weight.parse().ok()? })
}

fn stream(program: &mut Program, words: &[String]) -> Result<(), Box<dyn Error>> {
    let usage = "share stream TREES TO BYTES COUNT";
    let [trees, to, bytes, count] = words else { return Err(usage.into()) };
    let trees: Option<Vec<ShareTree>> = trees.split(';').map(parse_tree).collect();
    let trees = trees.ok_or("TREES: expected such as 0-1,1-2;0-2,2-1")?;
    let others: Vec<usize> = (0..program.size()).filter(|rank| program.site(*rank) != program.site(0)).collect();
    let to: Vec<usize> = match to.as_str() {
        "others" => others,
        "firsts" => {
            let mut seen = BTreeSet::new();
            others.into_iter().filter(|rank| seen.insert(program.site(*rank))).collect()
        }
        numbers => numbers.split(',').map(|rank| rank.parse().map_err(|_| usage)).collect::<Result<_, _>>()?,
    };
    let length = types::quantity::parse_bytes(bytes).map_err(|error| error.to_string())? as usize;
    let count: usize = count.parse().map_err(|_| usage)?;
    let pattern = Pattern::new(length);
    let (began, mut begun, mut ends, mut buckets) = (seconds(), 0, Vec::new(), Vec::<u64>::new());
    if program.rank != 0 && !to.contains(&program.rank) {
        return Ok(());
    }
    let mut counted = 0;
    while ends.len() < count {
        let most = if program.rank == 0 { IN_PROGRESS } else { AWAITED };
        while begun < count && begun < ends.len() + most {
            match program.rank {
                0 => program.share(begun as u64, &to, pattern.of(begun as u64, length), &trees)?,
                _ => program.receive(0, begun as u64, length)?,
            }
            begun += 1;
        }
        if let Some(done) = program.next()? {
            if program.rank != 0 {
                program.check(&done, &pattern, done.user.context as u64, length)?;
            }
            ends.push(seconds());
        }
        // Shares take turns, so several arrive at a time. `None`: the share has not begun, or is complete.
        let open = (0..begun).filter_map(|context| program.endpoint.share_arrived(UserData { context, flags: 0 }));
        let arrived = (ends.len() * length) as u64 + open.sum::<u64>();
        let bucket = ((seconds() - began) / BUCKET_S) as usize;
        buckets.resize(buckets.len().max(bucket + 1), 0);
        // A complete share is counted only once its completion was taken.
        buckets[bucket] += arrived.saturating_sub(counted);
        counted = counted.max(arrived);
    }
    let ends: Vec<String> = ends.iter().map(|end| format!("{end:.6}")).collect();
    let (rank, site) = (program.rank, program.site(program.rank));
    println!(
        "{{\"rank\": {rank}, \"site\": {site}, \"began\": {began:.6}, \"ends\": [{}], \"arrived\": {buckets:?}}}",
        ends.join(", ")
    );
    Ok(())
}

/// Small, fast, seeded: splitmix64.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % limit as u64) as usize
    }

    fn tree(&mut self, root: usize, sites: usize) -> ShareTree {
        let mut todo: Vec<usize> = (0..sites).filter(|site| *site != root).collect();
        let (mut there, mut edges) = (vec![root], Vec::new());
        while !todo.is_empty() {
            let at = self.below(todo.len());
            let (site, above) = (todo.swap_remove(at), there[self.below(there.len())]);
            edges.push((SiteId(above as u16), SiteId(site as u16)));
            there.push(site);
        }
        ShareTree { edges, weight: 1.0 + self.below(4) as f64 }
    }
}

/// A step of a storm. All ranks know all steps.
struct Step {
    root: usize,
    to: Vec<usize>,
    length: usize,
    trees: Vec<ShareTree>,
    /// A message: its sender, its receiver, and its length.
    message: (usize, usize, usize),
}

/// Lengths in bytes, most of them short.
const LENGTHS: [usize; 8] = [0, 1, 1000, 16_384, 60_000, 200_000, 1_000_000, 3_000_000];

fn steps(program: &Program, seed: u64, count: usize) -> Vec<Step> {
    let (mut random, ranks, sites) = (Random(seed), program.size(), program.sites());
    let mut steps = Vec::new();
    for _ in 0..count {
        let root = random.below(ranks);
        let away = |rank: usize| program.site(rank) != program.site(root);
        let mut to: Vec<usize> = (0..ranks).filter(|rank| away(*rank)).collect();
        // All of them, one of each site, or a random choice.
        match random.below(3) {
            0 => {}
            1 => {
                let mut seen = BTreeSet::new();
                to.retain(|rank| seen.insert(program.site(*rank)));
            }
            _ => {
                let kept = to[random.below(to.len())];
                to.retain(|rank| *rank == kept || random.below(2) == 0);
            }
        }
        let trees = (0..1 + random.below(3)).map(|_| random.tree(program.site(root), sites)).collect();
        let mut length = || LENGTHS[random.below(LENGTHS.len())];
        let (length, message) = (length(), length());
        let from = random.below(ranks);
        let others: Vec<usize> = (0..ranks).filter(|rank| program.site(*rank) != program.site(from)).collect();
        let message = (from, others[random.below(others.len())], message);
        steps.push(Step { root, to, length, trees, message });
    }
    steps
}

fn storm(program: &mut Program, words: &[String]) -> Result<(), Box<dyn Error>> {
    let usage = "share storm SEED COUNT";
    let [seed, count] = words else { return Err(usage.into()) };
    let (seed, count) = (seed.parse().map_err(|_| usage)?, count.parse().map_err(|_| usage)?);
    let (steps, pattern) = (steps(program, seed, count), Pattern::new(LENGTHS[LENGTHS.len() - 1]));
    let rank = program.rank;
    // Operations that this rank waits for: (step, kind of completion).
    let mut open: Vec<(usize, OperationKind)> = Vec::new();
    let (mut at, mut shares, mut messages) = (0, 0, 0);
    while at < steps.len() || !open.is_empty() {
        let in_progress =
            |open: &[(usize, OperationKind)]| open.iter().map(|(step, _)| *step).collect::<BTreeSet<_>>().len();
        while at < steps.len() && in_progress(&open) < STEPS {
            let step = &steps[at];
            let key = at as u64;
            if step.to.contains(&rank) {
                program.receive(step.root, key, step.length)?;
                open.push((at, OperationKind::Share));
            }
            if step.root == rank {
                program.share(key, &step.to, pattern.of(key, step.length), &step.trees)?;
                open.push((at, OperationKind::Share));
            }
            let (from, to, length) = step.message;
            let user = UserData { context: at, flags: 0 };
            if to == rank {
                let matching = Match { from: Some(program.peer(from)), tagged: true, tag: key, ignore: 0 };
                let receive = RecvOp { matching, buffer: Buffer::owned(vec![0; length]), multi: None, user };
                program.endpoint.receive(receive).map_err(|error| error.to_string())?;
                open.push((at, OperationKind::Recv));
            }
            if from == rank {
                let buffer = Buffer::owned(pattern.of(key, length));
                let (to, complete) = (program.peer(to), CompleteWhen::Sent);
                let send = SendOp { to, tag: Some(key), data: None, buffer, complete, user };
                program.endpoint.send(send).map_err(|error| error.to_string())?;
                open.push((at, OperationKind::Send));
            }
            at += 1;
        }
        let Some(done) = program.next()? else { continue };
        let number = done.user.context;
        let Some(waited) = open.iter().position(|waited| *waited == (number, done.kind)) else {
            return Err(format!("rank {rank}: step {number}: {:?} was not awaited", done.kind).into());
        };
        open.swap_remove(waited);
        match done.kind {
            OperationKind::Share if steps[number].root != rank => {
                program.check(&done, &pattern, number as u64, steps[number].length)?;
                shares += 1;
            }
            OperationKind::Recv => {
                program.check(&done, &pattern, number as u64, steps[number].message.2)?;
                messages += 1;
            }
            _ => {}
        }
    }
    println!("{{\"rank\": {rank}, \"shares\": {shares}, \"messages\": {messages}}}");
    Ok(())
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let run = || {
        let (mode, words) = words.split_first().ok_or("share stream|storm …: see the source")?;
        let mut program = Program::open()?;
        match mode.as_str() {
            "stream" => stream(&mut program, words),
            "storm" => storm(&mut program, words),
            other => Err(format!("{other}: neither `stream` nor `storm`").into()),
        }
        // The endpoint closes here: it waits until everything has arrived.
    };
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("share: {problem}");
            ExitCode::FAILURE
        }
    }
}
