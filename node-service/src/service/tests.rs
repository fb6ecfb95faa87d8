use std::io::{BufRead, BufReader};
use std::process::Command;

use super::*;
use crate::account::AccountError;
use crate::admission::Limits;
use crate::credential::{CredentialError, Opened};
use crate::message::{HookRequest, Request, VERSION};

/// A credential is `USER:payload`, and good once.
#[derive(Default)]
struct Purse(Mutex<Vec<Vec<u8>>>);

impl Opener for Purse {
    fn open(&self, credential: &[u8]) -> Result<Opened, CredentialError> {
        let mut used = self.0.lock().unwrap();
        if used.iter().any(|before| before == credential) {
            return Err(CredentialError::Refused("Replayed credential".into()));
        }
        used.push(credential.to_vec());
        let text = String::from_utf8_lossy(credential).into_owned();
        let (user, payload) =
            text.split_once(':').ok_or_else(|| CredentialError::Refused("Invalid credential".into()))?;
        Ok(Opened { user: user.parse().unwrap(), payload: payload.into() })
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
    fn command(&self, account: &Account, _: &Task) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", "read -r line; echo \"$0 $line\"; echo oh >&2; cat; exit 3", &account.name]);
        command
    }
}

fn service() -> Arc<Service> {
    Arc::new(Service {
        node: "n1".into(),
        slurm: rustix::process::getuid().as_raw(),
        limits: Limits { strangers: 3, per_user: 1 },
        opener: Box::<Purse>::default(),
        accounts: Box::new(Everybody),
        programs: Box::new(Echo),
        counts: Counts::default(),
    })
}

fn started() -> std::net::SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let service = service();
    std::thread::spawn(move || service.serve(&listener));
    address
}

fn agent(user: u32, order: &str) -> String {
    let request = Request::new("n1", Work::Agent { order: order.into() });
    format!("{user}:{}\n", serde_json::to_string(&request).unwrap())
}

struct Caller(BufReader<TcpStream>);

impl Caller {
    fn calls(address: std::net::SocketAddr, line: &str) -> Caller {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        (&stream).write_all(line.as_bytes()).unwrap();
        Caller(BufReader::new(stream))
    }

    fn hears(&mut self) -> Option<Answer> {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        serde_json::from_str(&line).ok()
    }

    fn is_refused(&mut self) -> String {
        match self.hears() {
            Some(Answer::Refused { reason }) => reason,
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
    assert!(refused.contains("1 orders of user id 7 are running"), "{refused}");
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
    assert_eq!(first.hears(), Some(Answer::Started));
    for (line, reason) in [
        (again.as_str(), "Replayed credential"),
        (&agent(0, "x"), "nothing is done as root"),
        (&agent(404, "x"), "user id 404 has no account"),
        (&agent(7, "x").replace("n1", "n2"), "for node n2"),
        ("hello\n", "Invalid credential"),
        ("7:hello\n", "not one for this service"),
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
fn callers_that_say_nothing_are_limited_in_number_and_time() {
    let address = started();
    let mut silent: Vec<Caller> = (0..3).map(|_| Caller::calls(address, "7:")).collect();
    let begin = Instant::now();
    while !Caller::calls(address, "").is_refused().contains("3 callers are connected") {
        assert!(begin.elapsed() < Duration::from_secs(3));
    }
    assert!(silent[0].is_refused().contains("no whole line came within 5 s"));
    drop(silent);
    let mut next = Caller::calls(address, &agent(7, "x"));
    assert_eq!(next.hears(), Some(Answer::Started));
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
    assert_eq!((ended.code, ended.output.as_str(), ended.words.as_str()), (3, "u7 step", "oh"));
    let refused = crate::client::hook(&path, &request(0), std::io::empty()).unwrap_err().to_string();
    assert!(refused.contains("refuses: user id 0: nothing is done as root"), "{refused}");
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
    for problem in ["is lost: the connection ended", "something else", "started twice", "something else"] {
        let error = crate::client::hook(&path, &request, std::io::empty()).unwrap_err().to_string();
        assert!(error.contains(problem), "{problem}: {error}");
    }
}
