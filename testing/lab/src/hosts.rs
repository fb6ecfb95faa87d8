//! Bringing up the hosts, the switches between them and the WAN emulator, from inside the outer namespaces.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::Child;

use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

use crate::error::LabError;
use crate::layout::{Host, HostRole, LabLayout, site_name};
use crate::message::{Channel, LabMessageKind};
use crate::namespace;
use crate::network;
use crate::node::{IsolatedPlan, NodePlan};
use crate::options::LabOptions;
use crate::process::{expect, start_with_channel};
use crate::state::LabDirectory;
use crate::sys;
use crate::wan::emulator::{PortPlan, WanPlan};

/// The first process of a host.
#[derive(Debug)]
pub(crate) struct HostProcess {
    pub name: String,
    pub child: Child,
    pub channel: Channel,
}

/// Starts the first process of every host and wires the hosts up. [`await_ready`] then waits until each serves.
pub(crate) fn bring_up(
    options: &LabOptions,
    layout: &LabLayout,
    state: &LabDirectory,
    visible: &[PathBuf],
) -> Result<Vec<HostProcess>, LabError> {
    let own_pids = File::open("/proc/self/ns/pid").map_err(|e| LabError::setup("/proc/self/ns/pid", e))?;
    let mut processes = Vec::new();
    for host in layout.hosts() {
        let process = start_in_new_pid_namespace(host, &own_pids)?;
        let forward = options.route_directly && host.role == HostRole::Gateway;
        let plan = NodePlan {
            name: process.name.clone(),
            socket: state.socket(&process.name),
            isolated: Some(IsolatedPlan {
                hosts_file: state.hosts_file(site_name(host.site)),
                visible: visible.to_vec(),
                pool: options.pool.clone().map(|at| (state.pool(site_name(host.site)), at)),
                script: network::host(layout, options.nic(host), host, options.route_directly),
                forward,
                ipv6: layout.any_ipv6(),
            }),
        };
        process.channel.send_json(LabMessageKind::Plan, &plan).map_err(|e| LabError::setup(&process.name, e))?;
        processes.push(process);
    }
    namespace::settle_network(false, false)?;
    for process in &processes {
        expect(&process.channel, LabMessageKind::Namespaces, &process.name)?;
    }
    let pids: Vec<u32> = processes.iter().map(|process| process.child.id()).collect();
    network::apply(&network::fabric(layout, |host| options.nic(host), &pids), "switches")?;
    for process in &processes {
        process.channel.send(LabMessageKind::Go, &[]).map_err(|e| LabError::setup(&process.name, e))?;
    }
    Ok(processes)
}

/// Waits until every host serves.
pub(crate) fn await_ready(processes: &[HostProcess]) -> Result<(), LabError> {
    for process in processes {
        expect(&process.channel, LabMessageKind::Ready, &process.name)?;
    }
    Ok(())
}

/// Starts a host's first process in a new PID namespace. Only children enter a new PID namespace, and a process can
/// create one only while its children still get its own.
fn start_in_new_pid_namespace(host: Host, own_pids: &File) -> Result<HostProcess, LabError> {
    let name = host.name();
    sys::unshare(UnshareFlags::NEWPID).map_err(|e| LabError::setup(format!("PID namespace of {name}"), e))?;
    let started = start_with_channel(&["lab-node", &name]);
    move_into_link_name_space(own_pids.as_fd(), Some(LinkNameSpaceType::ProcessID))
        .map_err(|e| LabError::setup("return to the PID namespace", e))?;
    let (child, channel) = started?;
    Ok(HostProcess { name, child, channel })
}

/// Starts the one process that serves all hosts of a loopback lab.
pub(crate) fn bring_up_loopback(layout: &LabLayout, state: &LabDirectory) -> Result<HostProcess, LabError> {
    let name = "this machine".to_owned();
    let (child, channel) = start_with_channel(&["lab-node", "loopback"])?;
    let socket = state.socket("machine");
    let plan = NodePlan { name: name.clone(), socket: socket.clone(), isolated: None };
    channel.send_json(LabMessageKind::Plan, &plan).map_err(|e| LabError::setup(&name, e))?;
    expect(&channel, LabMessageKind::Ready, &name)?;
    for host in layout.hosts() {
        let link = state.socket(&host.name());
        std::os::unix::fs::symlink(&socket, &link).map_err(|e| LabError::setup(link.display().to_string(), e))?;
    }
    Ok(HostProcess { name, child, channel })
}

/// Starts the WAN emulator; its first message is `Ready`.
pub(crate) fn start_wan(
    options: &LabOptions,
    layout: &LabLayout,
    state: &LabDirectory,
) -> Result<(Child, Channel), LabError> {
    let ports = layout.gateways().map(|gateway| PortPlan {
        gateway: gateway.name(),
        interface: gateway.wan_port(),
        mac: gateway.wan_mac(),
        site: gateway.site,
    });
    let plan = WanPlan {
        sites: (0..layout.sites).map(|site| site_name(site).to_string()).collect(),
        ports: ports.collect(),
        settings: options.link_settings(),
        seed: options.seed,
        control: state.wan_socket(),
        report: state.wan_report(),
    };
    let (child, channel) = start_with_channel(&["lab-wan"])?;
    channel.send_json(LabMessageKind::Plan, &plan).map_err(|e| LabError::setup("WAN emulator", e))?;
    Ok((child, channel))
}
