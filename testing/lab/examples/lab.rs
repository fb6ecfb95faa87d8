//! Drives the lab without the rest of Landbridge: `lab [FLAGS] -- COMMAND…`, `lab lab enter NODE -- COMMAND…`, `lab lab
//! wan a b down`, `lab lab kill HOST` (or `freeze`, `thaw`, `unplug`, `plug`), `lab lab reset HOST [--to PEER] [--of
//! PROCESS]`, `lab probe`. `--gateway-command` sets the gateways' command; by default there are none.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitCode, ExitStatus};

use lab::{Isolation, LabError, LabOptions};

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    if let Some(code) = lab::hidden_main(arguments.clone()) {
        return ExitCode::from(code as u8);
    }
    match dispatch(&arguments) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(error.exit_code())
        }
    }
}

fn code(status: ExitStatus) -> ExitCode {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    ExitCode::from(code.unwrap_or(125) as u8)
}

fn dispatch(arguments: &[OsString]) -> Result<ExitCode, LabError> {
    let words: Vec<&str> = arguments.iter().map(|word| word.to_str().unwrap_or("\u{fffd}")).collect();
    match words.as_slice() {
        ["probe"] => {
            let missing = lab::probe()?;
            missing.iter().for_each(|missing| println!("{}; {}", missing.what, missing.remedy));
            Ok(ExitCode::from(u8::from(!missing.is_empty())))
        }
        ["lab", "enter", node, "--", ..] => Ok(code(lab::enter(node, &arguments[4..])?)),
        ["lab", "kill", host] => lab::kill(host).map(|()| ExitCode::SUCCESS),
        ["lab", "freeze", host] => lab::freeze(host).map(|()| ExitCode::SUCCESS),
        ["lab", "thaw", host] => lab::thaw(host).map(|()| ExitCode::SUCCESS),
        ["lab", "unplug", host] => lab::unplug(host).map(|()| ExitCode::SUCCESS),
        ["lab", "plug", host] => lab::plug(host).map(|()| ExitCode::SUCCESS),
        ["lab", "reset", host, rest @ ..] => {
            let value = |flag: &str| {
                let found = rest.chunks(2).find(|pair| pair[0] == flag);
                found.and_then(|pair| pair.get(1)).map(|value| (*value).to_owned())
            };
            println!("{}", lab::reset(host, &lab::Wanted { to: value("--to"), of: value("--of") })?);
            Ok(ExitCode::SUCCESS)
        }
        ["lab", "wan", rest @ ..] => {
            let answer = lab::wan::control(rest)?;
            if !answer.is_empty() {
                println!("{answer}");
            }
            Ok(ExitCode::SUCCESS)
        }
        _ => {
            let options = options(&words, arguments)?;
            let report = lab::run(&options, &mut |notice| eprintln!("lab: {notice}"))?;
            Ok(code(report.status))
        }
    }
}

fn options(words: &[&str], arguments: &[OsString]) -> Result<LabOptions, LabError> {
    let mut options = LabOptions { gateway_command: Some(Vec::new()), ..LabOptions::default() };
    let mut index = 0;
    while index < words.len() && words[index] != "--" {
        let flag = words[index];
        let value = words.get(index + 1).copied().unwrap_or("");
        let refuse = |e: &dyn std::fmt::Display| LabError::Options(format!("{flag}: {e}"));
        let number = || value.parse::<usize>().map_err(|e| refuse(&e));
        index += 2;
        match flag {
            "--sites" => options.sites = number()?,
            "--nodes" => options.nodes = number()?,
            "--gateways" => options.gateways = number()?,
            "--delay" => options.delay = lab::parse_time(value).map_err(|e| refuse(&e))?,
            "--jitter" => options.jitter = lab::parse_time(value).map_err(|e| refuse(&e))?,
            "--loss" => options.loss = lab::parse_loss(value).map_err(|e| refuse(&e))?,
            "--wan-rate" => options.wan_rate = lab::parse_rate(value).map_err(|e| refuse(&e))?,
            "--nic-rate" => options.nic_rate = lab::parse_rate(value).map_err(|e| refuse(&e))?,
            "--gateway-command" => {
                options.gateway_command = Some(value.split_whitespace().map(str::to_owned).collect());
            }
            "--visible" => options.visible.push(value.into()),
            "--report" => options.report = Some(value.into()),
            "--logs" => options.logs = Some(value.into()),
            switch => {
                index -= 1;
                match switch {
                    "--same-range" => options.same_range = true,
                    "--route-directly" => options.route_directly = true,
                    "--loopback" => options.isolation = Isolation::Loopback,
                    "--namespaces" => options.isolation = Isolation::Namespaces,
                    _ => return Err(refuse(&"unknown flag")),
                }
            }
        }
    }
    options.command = arguments.iter().skip(index + 1).cloned().collect();
    Ok(options)
}
