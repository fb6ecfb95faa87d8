use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::{Arc, Barrier};

use super::*;

/// The barrier of the processes, the last bytes of each, and all bytes that they sent.
type Meeting = (Barrier, Mutex<Vec<Vec<u8>>>, Mutex<Vec<u8>>);

/// A side whose processes are threads, and all data that passes between them.
#[derive(Clone)]
struct Threads {
    rank: u32,
    all: Arc<Meeting>,
}

impl Threads {
    fn of(count: usize) -> Vec<Threads> {
        let all = Arc::new((Barrier::new(count), Mutex::new(vec![Vec::new(); count]), Mutex::default()));
        (0..count as u32).map(|rank| Threads { rank, all: all.clone() }).collect()
    }

    fn recorded(&self) -> Vec<u8> {
        self.all.2.lock().unwrap().clone()
    }
}

impl Ranks for Threads {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn broadcast(&mut self, bytes: Vec<u8>) -> Result<Vec<u8>, RanksError> {
        self.gather(bytes).map(|all| all[0].clone())
    }

    fn gather(&mut self, own: Vec<u8>) -> Result<Vec<Vec<u8>>, RanksError> {
        let (barrier, each, recorded) = &*self.all;
        recorded.lock().unwrap().extend(&own);
        each.lock().unwrap()[self.rank as usize] = own;
        barrier.wait();
        let all = each.lock().unwrap().clone();
        barrier.wait();
        Ok(all)
    }
}

/// A helper that announces a job with this secret, and then reads its input.
fn helper(secret: &str) -> PathBuf {
    let place = CouplingSite { name: "lyon".into(), gateways: vec![("g".into(), "127.0.0.1:9".into())], keys: vec![] };
    let home = HelperReport::Home { site: "lyon".into(), sites: vec![place] };
    let coupled = HelperReport::Coupled(Box::new(Coupled {
        job: "00".repeat(16),
        secret: secret.into(),
        roster: "lyon:1".into(),
        window: 1 << 20,
        ranks: [vec![0, 1, 2], vec![3]],
        addresses: vec![SocketAddr::from((Ipv4Addr::LOCALHOST, 9))],
        first: true,
        other: "the other side".into(),
    }));
    let line = |said| serde_json::to_string(&said).unwrap();
    let text = format!("#!/bin/sh\necho '{}'\nread line\necho '{}'\ncat\n", line(home), line(coupled));
    let path = std::env::temp_dir().join(format!("landbridge-helper-{}", std::process::id()));
    // Another process writes it: a child that a test beside this one starts inherits this process's open files for a
    // moment, and what is open for writing cannot be executed.
    let mut install = Command::new("install");
    let mut writing = install.args(["-m", "700", "/dev/stdin"]).arg(&path).stdin(Stdio::piped()).spawn().unwrap();
    writing.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    assert!(writing.wait().unwrap().success());
    path
}

#[test]
fn who_listens_to_a_sides_mpi_does_not_hear_the_jobs_secret() {
    let secret = "5e".repeat(32);
    let command = helper(&secret);
    let request = JoinRequest { name: "ocean@lyon".into(), site: None, command: Ok(command.clone()) };
    let sides = Threads::of(3);
    let join = |mut ranks: Threads| {
        let request = request.clone();
        std::thread::spawn(move || {
            let mut stop = || false;
            let mut patience = Patience { limit: Some(Duration::from_secs(60)), stop: &mut stop };
            Side::join(&mut ranks, &request, &mut patience).err().map(|error| error.to_string())
        })
    };
    let threads: Vec<_> = sides.iter().cloned().map(join).collect();
    let errors: Vec<Option<String>> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    std::fs::remove_file(command).unwrap();
    let recorded = String::from_utf8(sides[0].recorded()).unwrap();
    // Joining gets as far as the job; all ranks receive the error found there.
    assert!(recorded.contains("the other side"), "{errors:?}: {recorded}");
    assert!(!recorded.contains(&secret), "{recorded}");
    assert!(errors.iter().flatten().all(|error| !error.contains("secret")), "{errors:?}");
}

#[test]
fn addresses_are_made_numeric() {
    let (address, own) = numeric("127.0.0.1:80").unwrap();
    assert_eq!((address.to_string().as_str(), own.unwrap().ip().is_loopback()), ("127.0.0.1:80", true));
    let (address, own) = numeric("[::1]:80").unwrap();
    assert_eq!((address.to_string().as_str(), own.unwrap().ip().to_string().as_str()), ("[::1]:80", "::1"));
    assert_eq!(numeric("localhost:80").unwrap().0.port(), 80);
    assert!(numeric("nowhere").unwrap_err().to_string().starts_with("nowhere: "));
}

#[test]
fn a_gateway_without_a_route_from_here_is_passed_over() {
    let site = |gateways: &[(&str, &str)]| {
        let gateways = gateways.iter().map(|(name, address)| ((*name).into(), (*address).into())).collect();
        CouplingSite { name: "lyon".into(), gateways, keys: Vec::new() }
    };
    // No packet may be sent to all machines.
    let (unreached, near) = (("gw1", "255.255.255.255:7700"), ("gw2", "127.0.0.1:7700"));
    assert_eq!(own_address(&site(&[unreached, near])).unwrap(), Ipv4Addr::LOCALHOST);
    let error = own_address(&site(&[unreached])).unwrap_err().to_string();
    assert_eq!(error, "site lyon: gateway gw1: this machine has no route to 255.255.255.255:7700");
}

#[test]
fn without_a_command_there_is_no_coupling() {
    let mut stop = || false;
    let mut patience = Patience { limit: Some(Duration::from_secs(5)), stop: &mut stop };
    let request = |command| JoinRequest { name: "ocean@lyon".into(), site: None, command };
    let nameless = JoinRequest { name: "ocean".into(), ..request(Err(NoCommand(String::new()))) };
    let error = Side::join(&mut Alone, &nameless, &mut patience).err().unwrap();
    assert!(error.to_string().starts_with("`ocean` is not NAME@SITE"), "{error}");
    let missing = request(Err(NoCommand("there is no command".into())));
    let error = Side::join(&mut Alone, &missing, &mut patience).err();
    assert_eq!(error, Some(over("there is no command")));
    let error = Side::join(&mut Alone, &request(Ok("/nowhere/landbridge".into())), &mut patience).err().unwrap();
    assert!(error.to_string().starts_with("/nowhere/landbridge: "), "{error}");
    // A helper whose output is malformed.
    let error = Side::join(&mut Alone, &request(Ok("/bin/echo".into())), &mut patience).err().unwrap();
    assert!(error.to_string().starts_with("bad line from its helper: "), "{error}");
}
