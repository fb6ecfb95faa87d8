use std::io::{BufRead, BufReader};
use std::process::Command;

use std::net::TcpListener;

use super::*;
use crate::account::AccountError;
use crate::admission::CallerLimits;
use crate::credential::{CredentialError, OpenedCredential};
use crate::memory::Turns;
use crate::message::{HookRequest, Request, VERSION};

/// Stands for munge: a credential is `MUNGE:MAKER:READER:payload` in hexadecimal digits, and can be opened once.
#[derive(Default)]
struct Munge(Mutex<Vec<Vec<u8>>>);

fn credential(maker: u32, reader: u32, payload: &[u8]) -> Vec<u8> {
    let digits: String = payload.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("MUNGE:{maker}:{reader}:{digits}").into_bytes()
}

impl Credentials for Munge {
    fn open(&self, credential: &[u8]) -> Result<OpenedCredential, CredentialError> {
        let refused = |problem: &str| CredentialError::Refused(problem.into());
        let mut used = self.0.lock().unwrap();
        if used.iter().any(|before| before == credential) {
            return Err(refused("Replayed credential"));
        }
        used.push(credential.to_vec());
        let text = String::from_utf8_lossy(credential).into_owned();
        let [_, maker, _, digits] = text.split(':').collect::<Vec<_>>()[..] else {
            return Err(refused("Invalid credential"));
        };
        let byte = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).unwrap();
        Ok(OpenedCredential { user: maker.parse().unwrap(), payload: (0..digits.len()).step_by(2).map(byte).collect() })
    }

    fn seal(&self, payload: &[u8], reader: u32) -> Result<Vec<u8>, CredentialError> {
        Ok(credential(0, reader, payload))
    }
}

struct Everybody;

impl Accounts for Everybody {
    fn find(&self, user: u32) -> Result<Account, AccountError> {
        match user {
            0 => Err(AccountError::Root),
            404 => Err(AccountError::None(user)),
            _ => Ok(Account { user, group: user, name: format!("u{user}"), home: "/nonexistent".into() }),
        }
    }
}

/// Programs that print what they read, then wait for the end of their input.
struct Echo;

impl Programs for Echo {
    fn command(&self, account: &Account, _: &Task, _: &MemoryLimits) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", "read -r line; echo \"$0 $line\"; echo oh >&2; cat; exit 3", &account.name]);
        command
    }
}

fn service() -> Arc<Service> {
    Arc::new(Service {
        node: "n1".into(),
        slurm: rustix::process::getuid().as_raw(),
        limits: CallerLimits { strangers: 3, per_user: 1, orders: 3 },
        credentials: Box::<Munge>::default(),
        accounts: Box::new(Everybody),
        programs: Box::new(Echo),
        counts: Counts::default(),
        memory: Bound::Turns(Turns::default()),
        user_memory: 1 << 30,
    })
}

fn started() -> std::net::SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let service = service();
    std::thread::spawn(move || service.serve(&listener));
    address
}

fn line_of(user: u32, request: &Request) -> String {
    let line = credential(user, 0, &serde_json::to_vec(request).unwrap());
    String::from_utf8(line).unwrap() + "\n"
}

fn agent(user: u32, order: &str) -> String {
    line_of(user, &Request::new("n1", Work::Agent { order: order.into() }).unwrap())
}

struct Caller(BufReader<TcpStream>);

impl Caller {
    fn calls(address: std::net::SocketAddr, line: &str) -> Caller {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        (&stream).write_all(line.as_bytes()).unwrap();
        Caller(BufReader::new(stream))
    }

    /// An answer, and the user for whom it was sealed.
    fn hears_for(&mut self) -> Option<(Option<u32>, Answer)> {
        let mut line = String::new();
        self.0.read_line(&mut line).ok()?;
        let line = line.trim_end();
        if !line.starts_with("MUNGE:") {
            return Some((None, serde_json::from_str(line).ok()?));
        }
        let reader = line.split(':').nth(2).unwrap().parse().unwrap();
        let opened = Munge::default().open(line.as_bytes()).unwrap();
        let reply: Reply = serde_json::from_slice(&opened.payload).unwrap();
        Some((Some(reader), reply.answer))
    }

    fn hears(&mut self) -> Option<Answer> {
        self.hears_for().map(|(_, answer)| answer)
    }

    fn is_refused(&mut self) -> String {
        match self.hears() {
            Some(Answer::Refused { reason }) => reason.to_string(),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn an_order_is_read_by_what_it_starts_which_ends_with_the_callers_input() {
    let mut caller = Caller::calls(started(), &agent(7, "do it"));
    assert_eq!(caller.hears(), Some(Answer::Started));
    caller.0.get_mut().write_all(b"end\n").unwrap();
    caller.0.get_mut().shutdown(Shutdown::Write).unwrap();
    let ended = Answer::Ended { code: 3, output: "u7 do it\nend".into(), words: "oh".into() };
    assert_eq!(caller.hears(), Some(ended));
}

#[test]
fn what_was_started_ends_when_the_caller_is_gone_and_its_place_is_free_again() {
    let address = started();
    let mut first = Caller::calls(address, &agent(7, "1"));
    assert_eq!(first.hears(), Some(Answer::Started));
    let refused = Caller::calls(address, &agent(7, "2")).is_refused();
    assert!(refused.contains("already runs 1 orders of user id 7"), "{refused}");
    assert_eq!(Caller::calls(address, &agent(8, "3")).hears(), Some(Answer::Started), "others have their own places");
    drop(first);
    let begin = Instant::now();
    let mut order = 4;
    while Caller::calls(address, &agent(7, &order.to_string())).hears() != Some(Answer::Started) {
        assert!(begin.elapsed() < Duration::from_secs(10), "its place is still taken");
        std::thread::sleep(Duration::from_millis(20));
        order += 1;
    }
}

#[test]
fn callers_without_a_good_credential_get_a_reason_and_nothing_is_started() {
    let address = started();
    let again = agent(9, "x");
    let mut first = Caller::calls(address, &again);
    assert_eq!(first.hears_for(), Some((Some(9), Answer::Started)), "only the caller can read it");
    let elsewhere = Request::new("n2", Work::Agent { order: "x".into() }).unwrap();
    let hello = String::from_utf8(credential(7, 0, b"hello")).unwrap() + "\n";
    for (line, reason) in [
        (again.as_str(), "Replayed credential"),
        (&agent(0, "x"), "nothing is done as root"),
        (&agent(404, "x"), "user id 404 has no account"),
        (&line_of(7, &elsewhere), "for node n2"),
        ("hello\n", "Invalid credential"),
        ("MUNGE:hello\n", "Invalid credential"),
        (&hello, "unknown request"),
        ("\n", "Invalid credential"),
    ] {
        let refused = Caller::calls(address, line).is_refused();
        assert!(refused.contains(reason), "{line}: {refused}");
    }
    let mut long = Caller::calls(address, "");
    let _ = long.0.get_mut().write_all(&vec![b'x'; 2 * LONGEST]);
    assert!(long.is_refused().contains("a line of more than"));
}

#[test]
fn callers_that_say_nothing_keep_nobody_out() {
    let address = started();
    let threads = || std::fs::read_dir("/proc/self/task").unwrap().count();
    let before = threads();
    let mut silent: Vec<Caller> =
        (0..200).map(|at| Caller::calls(address, if at % 2 == 0 { "" } else { "MUNGE:" })).collect();
    for order in ["1", "2", "3"] {
        let mut caller = Caller::calls(address, &agent(7, order));
        assert_eq!(caller.hears(), Some(Answer::Started));
        caller.0.get_mut().shutdown(Shutdown::Write).unwrap();
        assert!(matches!(caller.hears(), Some(Answer::Ended { .. })));
        silent.extend((0..50).map(|_| Caller::calls(address, "")));
    }
    assert!(threads() < before + 50, "{} threads for {} callers", threads() - before, silent.len());
    assert!(silent[0].is_refused().contains("too many connections (3)"));
    let mut last = Caller::calls(address, "7:");
    assert!(last.is_refused().contains("no whole line came within 5 s"));
}

#[test]
fn orders_of_all_users_together_are_limited() {
    let address = started();
    let mut running: Vec<Caller> = (1..=3).map(|user| Caller::calls(address, &agent(user, "x"))).collect();
    assert!(running.iter_mut().all(|caller| caller.hears() == Some(Answer::Started)));
    assert!(Caller::calls(address, &agent(4, "x")).is_refused().contains("already runs 3 orders"));
}

#[test]
fn a_program_that_its_order_outlives_it_is_ended() {
    // A program that does not notice the end of its input, and goes on without a caller.
    let ended = Arc::new(Ended::default());
    let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
    let pid = Pid::from_child(&child);
    let follow = std::thread::spawn({
        let ended = ended.clone();
        move || ended.within(Duration::from_millis(50), pid)
    });
    assert_eq!(ended.wait(&mut child).unwrap().signal(), Some(15));
    follow.join().unwrap();
    // An ended program gets no signal: its number may already belong to another process.
    let mut child = Command::new("true").spawn().unwrap();
    let (other, pid) = (Arc::new(Ended::default()), Pid::from_child(&child));
    assert!(other.wait(&mut child).unwrap().success());
    let mut bystander = Command::new("sleep").arg("1000").spawn().unwrap();
    other.within(Duration::ZERO, Pid::from_child(&bystander));
    assert!(bystander.try_wait().unwrap().is_none() && pid != Pid::from_child(&bystander));
    bystander.kill().unwrap();
    bystander.wait().unwrap();
}

/// A port where another program answers, with these lines one after the other.
fn answers(lines: Vec<Vec<u8>>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        line(&mut stream, &mut Vec::new(), LONGEST, PATIENCE).unwrap();
        for text in lines {
            stream.write_all(&text).unwrap();
            stream.write_all(b"\n").unwrap();
        }
    });
    address
}

#[test]
fn an_answer_counts_only_if_root_has_made_it_for_this_request() {
    let request = Request::new("n1", Work::Look { path: b"/x".into() }).unwrap();
    let other = Request::new("n1", Work::Look { path: b"/x".into() }).unwrap();
    let over = Answer::Ended { code: 0, output: String::new(), words: "".into() };
    let reply = |request: &Request, answer: Answer| {
        let reply = Reply { landbridge_node_service: VERSION, nonce: request.nonce.clone(), answer };
        serde_json::to_vec(&reply).unwrap()
    };
    let plain = |answer: &Answer| serde_json::to_vec(answer).unwrap();
    let started = credential(0, 7, &reply(&request, Answer::Started));
    let refused = |lines: Vec<Vec<u8>>| {
        let error = crate::client::order(&answers(lines), &Munge::default(), &request, std::io::empty()).unwrap_err();
        error.to_string()
    };
    for lines in [
        vec![plain(&Answer::Started), plain(&over)],
        vec![plain(&over)],
        vec![plain(&Answer::Refused { reason: "\u{1b}[2J".into() })],
        vec![started.clone(), plain(&over)],
        vec![b"MUNGE:nonsense".to_vec()],
        vec![b"HTTP/1.1 400".to_vec()],
        vec![credential(1001, 7, &reply(&request, over.clone()))],
        vec![started.clone(), credential(1001, 7, &reply(&request, over.clone()))],
        vec![credential(0, 7, &reply(&other, over.clone()))],
        vec![credential(0, 7, &plain(&over))],
    ] {
        let error = refused(lines);
        assert!(error.contains("has not proved that it is the node service") && !error.contains('\u{1b}'), "{error}");
    }
    let lines = vec![started, credential(0, 7, &reply(&request, over))];
    let ended = crate::client::order(&answers(lines), &Munge::default(), &request, std::io::empty()).unwrap();
    assert_eq!(ended.code, 0);
}

#[test]
fn hooks_come_by_the_local_socket() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    let service = service();
    std::thread::spawn(move || service.serve_hooks(&listener));
    let request = |user| HookRequest { landbridge_node_service: VERSION, user, step: "step".into() };
    let ended = crate::client::hook(&path, &request(7), std::io::empty()).unwrap();
    assert_eq!((ended.code, ended.output.as_str(), ended.words.raw()), (3, "u7 step", "oh"));
    let refused = crate::client::hook(&path, &request(0), std::io::empty()).unwrap_err().to_string();
    assert!(refused.contains("refuses: user id 0: nothing is done as root"), "{refused}");
}

#[test]
fn a_hook_waits_for_a_service_that_starts_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let request = HookRequest { landbridge_node_service: VERSION, user: 7, step: "step".into() };
    let never = crate::client::hook_within(Duration::ZERO, &path, &request, std::io::empty()).unwrap_err();
    assert!(never.to_string().contains("systemctl status"), "{never}");
    // A killed service leaves a socket without a listener.
    drop(UnixListener::bind(&path).unwrap());
    let (begins, place) = (service(), path.clone());
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(300));
        std::fs::remove_file(&place).unwrap();
        std::thread::sleep(Duration::from_millis(300));
        let _ = begins.serve_hooks(&UnixListener::bind(&place).unwrap());
    });
    assert_eq!(crate::client::hook(&path, &request, std::io::empty()).unwrap().code, 3);
}

#[test]
fn a_caller_learns_what_answers_instead_of_a_service() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    let words = ["", "HTTP/1.1 400\n", "\"started\"\n\"started\"\n", "{\"ended\":1}\n"];
    std::thread::spawn(move || {
        for (stream, words) in listener.incoming().zip(words) {
            let mut stream = stream.unwrap();
            line(&mut stream, &mut Vec::new(), LONGEST, PATIENCE).unwrap();
            let _ = stream.write_all(words.as_bytes());
        }
    });
    let request = HookRequest { landbridge_node_service: VERSION, user: 7, step: "step".into() };
    for problem in ["is lost: the connection ended", "not a Landbridge", "started twice", "not a Landbridge"] {
        let error = crate::client::hook(&path, &request, std::io::empty()).unwrap_err().to_string();
        assert!(error.contains(problem), "{problem}: {error}");
    }
}
