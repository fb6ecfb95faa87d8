use super::*;
use crate::release::File;

struct Quiet;

impl Progress for Quiet {
    fn step(&mut self, _site: &str, _text: &str) {}
}

/// A release whose command answers every request with the same reply, and the folder with its files.
fn release(command: &str) -> (Release, tempfile::TempDir) {
    use sha2::{Digest, Sha256};
    let folder = tempfile::tempdir().unwrap();
    let file = |name, bytes: &[u8]| {
        std::fs::write(folder.path().join(name), bytes).unwrap();
        File::new(name, &folder.path().join(name), crate::sums::hex(&Sha256::digest(bytes)))
    };
    let files = vec![file("liblandbridge-fi.so", b"provider"), file("landbridge", command.as_bytes())];
    (Release { id: "1.2.3-abc".into(), architecture: std::env::consts::ARCH.into(), files }, folder)
}

const ANSWERS: &str = "#!/bin/sh\ncase $1 in --version) echo v;; *) while read -r x; do echo '{\"Done\":{\"note\":\"well\"}}'; done;; esac\n";

/// Gives a file another content, in one step: one that is being executed cannot be written to ("text file busy").
fn replace(path: &str, text: &str) {
    let fresh = format!("{path}.fresh");
    std::fs::write(&fresh, text).unwrap();
    std::fs::set_permissions(&fresh, std::fs::metadata(path).unwrap().permissions()).unwrap();
    std::fs::rename(&fresh, path).unwrap();
}

async fn reach(folder: &str, release: &Release) -> Result<Machine, SetupError> {
    let way = Way { site: "lyon", place: &MachinePlace::Here, folder: Some(folder), asking: false };
    Machine::reach(&way, release, &mut Quiet).await
}

#[tokio::test]
async fn files_are_copied_once_and_the_program_answers() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("it's here").display().to_string();
    for copied in [2, 0] {
        let mut machine = reach(&folder, &release(ANSWERS).0).await.unwrap();
        assert_eq!(machine.copied, copied);
        assert!(machine.facts.folder.raw().ends_with("it's here/1.2.3-abc"));
        let Reply::Done { note } = machine.ask(&SiteRequest::ReadSites).await.unwrap() else { panic!() };
        assert_eq!(note, "well");
    }
    std::fs::write(format!("{folder}/1.2.3-abc/liblandbridge-fi.so"), "half").unwrap();
    assert_eq!(reach(&folder, &release(ANSWERS).0).await.unwrap().copied, 1);
    let left: Vec<_> = std::fs::read_dir(format!("{folder}/1.2.3-abc")).unwrap().collect();
    assert_eq!(left.len(), 4, "{left:?}");
    // A made-up sum shows that the file is not hashed again while it is unchanged.
    let note = format!("{folder}/1.2.3-abc/.landbridge.sum");
    let text = std::fs::read_to_string(&note).unwrap();
    std::fs::write(&note, format!("made-up {}", text.split_once(' ').unwrap().1)).unwrap();
    assert_eq!(reach(&folder, &release(ANSWERS).0).await.unwrap().copied, 1);
    replace(&format!("{folder}/1.2.3-abc/landbridge"), &ANSWERS.replace("well", "ill!"));
    assert_eq!(reach(&folder, &release(ANSWERS).0).await.unwrap().copied, 1, "changed there, with the same size");
}

#[tokio::test]
async fn what_does_not_work_is_said_with_the_place() {
    let home = tempfile::tempdir().unwrap();
    let at = |name: &str| home.path().join(name).display().to_string();
    let problem = async |folder: &str, release: &Release| reach(folder, release).await.unwrap_err().to_string();
    let (mut other, _files) = release(ANSWERS);
    other.architecture = "vax".into();
    assert!(problem(&at("a"), &other).await.contains("this landbridge is for vax"));
    let text = problem(&at("b"), &release("#!/bin/sh\necho \"version GLIBC_2.99 not found\" >&2; exit 1\n").0).await;
    assert!(text.contains("GLIBC_2.99") && text.contains("--programs"), "{text}");
    std::fs::write(at("file"), "x").unwrap();
    let text = problem(&at("file"), &release(ANSWERS).0).await;
    assert!(text.contains("cannot make") && text.contains("--folder"), "{text}");
    let text = problem("relative", &release(ANSWERS).0).await;
    assert!(text.contains("must begin with"), "{text}");
    let text = problem("/dev/full/x", &release(ANSWERS).0).await;
    assert!(text.contains("/dev/full"), "{text}");
    let (dies, _files) =
        release("#!/bin/sh\ncase $1 in --version) echo v;; *) echo 'out of memory' >&2; exit 3;; esac\n");
    let mut machine = reach(&at("c"), &dies).await.unwrap();
    let text = machine.ask(&SiteRequest::ReadSites).await.unwrap_err().to_string();
    assert!(text.contains("site lyon") && text.contains("out of memory"), "{text}");
}

#[test]
fn refusals_of_ssh_are_understood() {
    let tail = |text: &str| {
        let mut tail = Tail::default();
        tail.push(text.as_bytes());
        tail
    };
    let judge = |code, words: &str| ssh::Unreachable::judge(String::new(), Some(code), &tail(words), &Tail::default());
    let place: MachinePlace = "me@host:2222".parse().unwrap();
    let denied = judge(255, "Welcome!\nme@host: Permission denied (publickey,password).\n");
    assert!(denied.asks);
    assert!(denied.advice(&place).contains("`ssh -v -p 2222 me@host`"), "{}", denied.advice(&place));
    let unknown = judge(255, "Host key verification failed.\r\n");
    assert!(unknown.asks && unknown.advice(&place).contains("log in once with `ssh -p 2222 me@host`"));
    let refused = judge(255, "ssh: connect to host host port 2222: Connection refused\n");
    assert!(!refused.asks && refused.advice(&place).contains("Connection refused"));
    assert!(judge(127, "").problem.contains("install an ssh client"));
    // The login's own messages come on standard output.
    let printed =
        |text: &str| ssh::Unreachable::judge(String::new(), Some(1), &Tail::default(), &tail(text)).advice(&place);
    assert!(printed("This account is currently not available.\n").contains("currently not available"));
    assert!(printed("\u{1b}]0;x\u{7}").contains("\\u{1b}]0"));
    let expired = "WARNING: Your password has expired.\nPassword change required but no TTY available.\n";
    assert!(judge(1, expired).advice(&place).contains("change it"));
}

/// A release whose command runs `words` with each request.
fn answering(words: &str) -> (Release, tempfile::TempDir) {
    release(&format!("#!/bin/sh\ncase $1 in --version) echo v; exit;; esac\nread -r request\n{words}\n"))
}

#[tokio::test]
async fn endless_output_is_not_kept() {
    let home = tempfile::tempdir().unwrap();
    for (name, words) in [
        ("lines", "yes"),
        ("one line", "yes '{' | tr -d '\\n'"),
        ("replies", "printf '{'; exec cat /dev/zero"),
        ("both", "yes >&2 & exec yes"),
    ] {
        let (release, _files) = answering(words);
        let mut machine = reach(&home.path().join(name).display().to_string(), &release).await.unwrap();
        let text = machine.ask(&SiteRequest::ReadSites).await.unwrap_err().to_string();
        assert!(text.contains("site lyon") && text.contains("prints without end"), "{name}: {text}");
    }
}

#[tokio::test]
async fn nothing_that_a_machine_says_acts_on_a_terminal() {
    let home = tempfile::tempdir().unwrap();
    let hostile = r"\033]52;c;aGk=\007\nlandbridge: lyon: all is well";
    let at = |name: &str| home.path().join(name).display().to_string();
    let (version, _files) = release(&format!("#!/bin/sh\nprintf '{hostile}'; exit 1\n"));
    let (words, _more_files) = answering(&format!("printf '{hostile}' >&2; exit 3"));
    let mut machine = reach(&at("words"), &words).await.unwrap();
    let (reply, _other_files) =
        answering(r#"printf '%s\n' '{"Failed":{"problem":"x\u001b]52;c;aGk=\u0007\nlandbridge: done"}}'"#);
    let mut lying = reach(&at("reply"), &reply).await.unwrap();
    for text in [
        reach(&at("version"), &version).await.unwrap_err().to_string(),
        machine.ask(&SiteRequest::ReadSites).await.unwrap_err().to_string(),
        lying.ask(&SiteRequest::ReadSites).await.unwrap_err().to_string(),
    ] {
        assert!(!text.replace('\n', "").chars().any(types::untrusted::acts), "{text}");
        assert!(!text.contains("\nlandbridge") && text.contains("]52;c;aGk="), "{text}");
    }
}

#[tokio::test]
async fn a_reply_is_found_among_what_others_print() {
    let home = tempfile::tempdir().unwrap();
    let (release, _files) = answering(r#"printf 'mail for you\n\n{"Done":{"note":"well"}}\n'; cat"#);
    let mut machine = reach(&home.path().join("x").display().to_string(), &release).await.unwrap();
    assert_eq!(machine.ask(&SiteRequest::ReadSites).await.unwrap(), Reply::Done { note: "well".into() });
}

#[tokio::test]
async fn a_job_is_over_when_ssh_is_although_its_standard_error_stays_open() {
    let home = tempfile::tempdir().unwrap();
    // Behaves as the process that keeps a shared connection did before OpenSSH 8.5.
    let (release, _files) = answering(r"sleep 60 >/dev/null & printf 'o\0\0\0\4out\nx\0\0\0\4\0\0\0\7'; exit 7");
    let machine = reach(&home.path().join("x").display().to_string(), &release).await.unwrap();
    let (mut out, mut errors) = (Vec::new(), Vec::new());
    let (_signals, none) = mpsc::channel(1);
    let streams = Streams { output: &mut out, errors: &mut errors, input: None, signals: none };
    let ended = machine.become_job(&SiteRequest::ReadSites, streams);
    let code = timeout(Duration::from_secs(30), ended).await.expect("waits for the end of standard error").unwrap();
    assert_eq!((code, out.as_slice(), errors.as_slice()), (7, b"out\n".as_slice(), b"".as_slice()));
}
