//! The WAN process: a packet socket at the WAN end of every gateway's cable, one thread, a heap of departures.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::io::{self, BufRead, BufReader, Write};
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use super::control::{RequestError, WanRequest, parse};
use super::lateness::Histogram;
use super::link::{EmulatedLink, LinkSettings, SplitMix64, Verdict};
use super::report::{LinkReport, PortReport, WanReport};
use super::segment;
use crate::error::LabError;
use crate::message::{Channel, LabMessageKind};
use crate::signals::Signals;
use crate::sys;

/// Larger than any super-packet with its headers.
const BUFFER: usize = 70_000;
/// The most packets read from one port before the other ports have their turn.
const TURN: usize = 32;

/// The emulator's plan: sites, ports and settings.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct WanPlan {
    pub sites: Vec<String>,
    pub ports: Vec<PortPlan>,
    pub settings: LinkSettings,
    pub seed: u64,
    pub control: PathBuf,
    pub report: PathBuf,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct PortPlan {
    pub gateway: String,
    pub interface: String,
    pub mac: [u8; 6],
    pub site: usize,
}

/// The entry point of the hidden command `lab-wan`: talks to the supervisor over standard input.
pub(crate) fn main() -> i32 {
    let Ok(channel) = Channel::from_stdin() else { return 1 };
    let outcome = crate::process::follow_parent(&channel).and_then(|()| {
        let message = crate::process::expect(&channel, LabMessageKind::Plan, "supervisor")?;
        let plan: WanPlan = message.json().map_err(|e| LabError::setup("WAN emulator", e))?;
        let mut emulator = Emulator::open(plan)?;
        channel.send(LabMessageKind::Ready, &[]).map_err(|e| LabError::setup("WAN emulator", e))?;
        emulator.run(&channel)?;
        let report = emulator.report();
        let text = serde_json::to_string_pretty(&report).map_err(|e| LabError::setup("WAN report", e))?;
        std::fs::write(&emulator.plan.report, text).map_err(|e| LabError::setup("WAN report", e))?;
        // The supervisor may already be gone; then the report is not needed.
        let _ = channel.send_json(LabMessageKind::Done, &report);
        Ok(())
    });
    match outcome {
        Ok(()) => 0,
        Err(error) => {
            // The supervisor also sees our exit code.
            let _ = channel.send_json(LabMessageKind::Failed, &error);
            1
        }
    }
}

struct Port {
    socket: OwnedFd,
    received: u64,
    sent: u64,
    send_errors: u64,
    overruns: u64,
    plugged: bool,
    unplugged_packets: u64,
}

struct Flight {
    port: usize,
    link: usize,
    wire_bytes: u64,
    packet: Vec<u8>,
}

struct Emulator {
    plan: WanPlan,
    ports: Vec<Port>,
    macs: HashMap<[u8; 6], usize>,
    /// Indexed by sending site × number of sites + receiving site.
    links: Vec<EmulatedLink>,
    random: SplitMix64,
    /// Due time, sequence (so that packets due at the same time keep their order), slot in `flights`.
    heap: BinaryHeap<Reverse<(u64, u64, usize)>>,
    flights: Vec<Option<Flight>>,
    free_slots: Vec<usize>,
    buffers: Vec<Vec<u8>>,
    sequence: u64,
    lateness: Histogram,
    realtime: io::Result<()>,
    listener: UnixListener,
    clients: Vec<BufReader<UnixStream>>,
}

fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

impl Emulator {
    fn open(plan: WanPlan) -> Result<Emulator, LabError> {
        let mut ports = Vec::new();
        let mut macs = HashMap::new();
        for (index, port) in plan.ports.iter().enumerate() {
            let socket = sys::packet_socket(&port.interface).map_err(|e| LabError::Unavailable {
                what: format!("a packet socket on {}: {e}", port.interface),
                remedy: "the kernel needs CONFIG_PACKET with PACKET_VNET_HDR and PACKET_IGNORE_OUTGOING (4.20)".into(),
            })?;
            ports.push(Port {
                socket,
                received: 0,
                sent: 0,
                send_errors: 0,
                overruns: 0,
                plugged: true,
                unplugged_packets: 0,
            });
            macs.insert(port.mac, index);
        }
        let place = || plan.control.display().to_string();
        let listener = UnixListener::bind(&plan.control).map_err(|e| LabError::setup(place(), e))?;
        listener.set_nonblocking(true).map_err(|e| LabError::setup(place(), e))?;
        // A timer slack of 1 ns instead of 50 µs; real-time threads have none anyway. No kernel refuses this.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        let links = vec![EmulatedLink::new(plan.settings); plan.sites.len() * plan.sites.len()];
        Ok(Emulator {
            ports,
            macs,
            links,
            random: SplitMix64(plan.seed),
            heap: BinaryHeap::new(),
            flights: Vec::new(),
            free_slots: Vec::new(),
            buffers: Vec::new(),
            sequence: 0,
            lateness: Histogram::new(),
            realtime: sys::realtime(10),
            listener,
            clients: Vec::new(),
            plan,
        })
    }

    /// Relays until SIGTERM or until the supervisor is gone.
    fn run(&mut self, channel: &Channel) -> Result<(), LabError> {
        let wrong = |e: io::Error| LabError::setup("WAN emulator", e);
        let signals = Signals::watch(&[libc::SIGTERM]).map_err(wrong)?;
        let mut scratch = vec![0u8; BUFFER];
        loop {
            self.deliver_due();
            let wait = self.heap.peek().map(|Reverse((due, _, _))| due.saturating_sub(now()));
            let timeout =
                wait.map(|ns| Timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as _ });
            let mut fds =
                vec![PollFd::new(channel, PollFlags::IN), PollFd::from_borrowed_fd(signals.fd(), PollFlags::IN)];
            fds.push(PollFd::new(&self.listener, PollFlags::IN));
            fds.extend(self.ports.iter().map(|port| PollFd::new(&port.socket, PollFlags::IN)));
            fds.extend(self.clients.iter().map(|client| PollFd::new(client.get_ref(), PollFlags::IN)));
            match rustix::event::poll(&mut fds, timeout.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(wrong(e.into())),
            }
            let woken: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
            drop(fds);
            if woken[0] || woken[1] {
                return Ok(());
            }
            let (ports, clients) = woken[3..].split_at(self.ports.len());
            for (port, _) in ports.iter().enumerate().filter(|(_, woken)| **woken) {
                self.read_port(port, &mut scratch);
            }
            if clients.contains(&true) {
                self.serve_clients(clients);
            }
            if woken[2] {
                self.accept();
            }
        }
    }

    fn deliver_due(&mut self) {
        let mut time = now();
        while let Some(&Reverse((due, _, slot))) = self.heap.peek() {
            if due > time {
                time = now();
                if due > time {
                    break;
                }
            }
            self.heap.pop();
            self.lateness.add(time - due);
            self.free_slots.push(slot);
            let Some(flight) = self.flights[slot].take() else { continue };
            self.links[flight.link].delivered(flight.wire_bytes);
            let port = &mut self.ports[flight.port];
            if port.plugged {
                match rustix::io::write(&port.socket, &flight.packet) {
                    Ok(_) => port.sent += 1,
                    Err(_) => port.send_errors += 1,
                }
            } else {
                port.unplugged_packets += 1;
            }
            if self.buffers.len() < 1024 {
                self.buffers.push(flight.packet);
            }
        }
    }

    fn read_port(&mut self, from: usize, scratch: &mut [u8]) {
        for _ in 0..TURN {
            let length = match rustix::io::read(&self.ports[from].socket, &mut *scratch) {
                Ok(length) => length,
                // Nothing is left, or the interface went down; poll reports further packets.
                Err(_) => return,
            };
            if !self.ports[from].plugged {
                self.ports[from].unplugged_packets += 1;
                continue;
            }
            self.ports[from].received += 1;
            let packet = &scratch[..length];
            let Some(destination) = segment::destination(packet) else { continue };
            if destination[0] & 1 == 0 {
                if let Some(&to) = self.macs.get(&destination) {
                    self.forward(from, to, packet);
                }
            } else {
                for to in (0..self.ports.len()).filter(|to| *to != from) {
                    self.forward(from, to, packet);
                }
            }
            // Packets that became due in the meantime go first: a batch of reads would make them late.
            self.deliver_due();
        }
    }

    fn forward(&mut self, from: usize, to: usize, packet: &[u8]) {
        let (source, target) = (self.plan.ports[from].site, self.plan.ports[to].site);
        // Gateways of one site reach each other over their LAN.
        if source == target {
            return;
        }
        let Some(size) = segment::size(packet) else { return };
        let link = source * self.plan.sites.len() + target;
        let Verdict::Deliver { due, survivors } = self.links[link].offer(now(), size, &mut self.random) else { return };
        let mut wire_bytes = size.wire_bytes;
        if survivors.is_empty() {
            let mut buffer = self.buffer();
            buffer.extend_from_slice(packet);
            self.send_at(due, Flight { port: to, link, wire_bytes, packet: buffer });
            return;
        }
        for run in survivors {
            let mut buffer = self.buffer();
            if segment::cut(packet, run, &mut buffer).is_some() {
                // All of the packet's bytes leave the link with its first part.
                self.send_at(due, Flight { port: to, link, wire_bytes, packet: buffer });
                wire_bytes = 0;
            }
        }
        self.links[link].delivered(wire_bytes);
    }

    fn buffer(&mut self) -> Vec<u8> {
        let mut buffer = self.buffers.pop().unwrap_or_default();
        buffer.clear();
        buffer
    }

    fn send_at(&mut self, due: u64, flight: Flight) {
        let slot = self.free_slots.pop().unwrap_or_else(|| {
            self.flights.push(None);
            self.flights.len() - 1
        });
        self.flights[slot] = Some(flight);
        self.sequence += 1;
        self.heap.push(Reverse((due, self.sequence, slot)));
    }

    fn accept(&mut self) {
        while let Ok((stream, _)) = self.listener.accept() {
            // More than eight clients at once is a mistake of the callers; further connections are closed.
            if self.clients.len() < 8 && stream.set_read_timeout(Some(Duration::from_millis(20))).is_ok() {
                self.clients.push(BufReader::new(stream));
            }
        }
    }

    fn serve_clients(&mut self, woken: &[bool]) {
        let clients = std::mem::take(&mut self.clients);
        for (index, mut client) in clients.into_iter().enumerate() {
            if !woken.get(index).copied().unwrap_or(false) {
                self.clients.push(client);
                continue;
            }
            let mut line = String::new();
            // One request per connection: one short line, written at once.
            if client.read_line(&mut line).is_ok() && !line.is_empty() {
                let answer = self.answer(&line);
                let _ = client.get_mut().write_all(answer.as_bytes());
            }
        }
    }

    fn answer(&mut self, line: &str) -> String {
        match parse(line).and_then(|request| self.obey(request)) {
            Ok(text) if text.is_empty() => "ok\n".to_owned(),
            Ok(text) => format!("ok {text}\n"),
            Err(problem) => format!("error {problem}\n"),
        }
    }

    fn obey(&mut self, request: WanRequest) -> Result<String, RequestError> {
        match request {
            WanRequest::Report => {
                serde_json::to_string(&self.report()).map_err(|e| RequestError::Report(e.to_string()))
            }
            WanRequest::Set { from, to, changes } => {
                let sites = self.plan.sites.clone();
                let find = |name: &str| {
                    let found = sites.iter().position(|site| site == name);
                    found.ok_or_else(|| RequestError::NoSite { name: name.to_owned(), known: sites.join(", ") })
                };
                let (from, to) = (find(&from)?, find(&to)?);
                if from == to {
                    return Err(RequestError::Itself(sites[from].clone()));
                }
                for index in [from * sites.len() + to, to * sites.len() + from] {
                    let mut settings = self.links[index].settings;
                    changes.iter().for_each(|change| change.apply(&mut settings));
                    self.links[index].change(settings);
                }
                Ok(String::new())
            }
            WanRequest::Cable { gateway, plugged } => {
                let found = self.plan.ports.iter().position(|port| port.gateway == gateway);
                self.ports[found.ok_or(RequestError::NoGateway(gateway))?].plugged = plugged;
                Ok(String::new())
            }
        }
    }

    fn report(&mut self) -> WanReport {
        let names = &self.plan.sites;
        let links = self.links.iter().enumerate().filter_map(|(index, link)| {
            let (from, to) = (index / names.len(), index % names.len());
            (from != to).then(|| LinkReport {
                from: names[from].clone(),
                to: names[to].clone(),
                settings: link.settings,
                counters: link.counters,
            })
        });
        let links = links.collect();
        let ports = self.ports.iter_mut().zip(&self.plan.ports).map(|(port, plan)| {
            port.overruns += u64::from(sys::packet_overruns(&port.socket).unwrap_or(0));
            PortReport {
                gateway: plan.gateway.clone(),
                received: port.received,
                sent: port.sent,
                send_errors: port.send_errors,
                overruns: port.overruns,
                unplugged_packets: port.unplugged_packets,
            }
        });
        WanReport {
            realtime: self.realtime.is_ok(),
            realtime_refused: self.realtime.as_ref().err().map(ToString::to_string),
            seed: self.plan.seed,
            lateness: self.lateness.report(),
            links,
            ports: ports.collect(),
        }
    }
}
