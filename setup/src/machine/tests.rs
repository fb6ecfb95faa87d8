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
        File::new(name, &folder.path().join(name), crate::release::hex(&Sha256::digest(bytes)))
    };
    let files = vec![file("liblandbridge-fi.so", b"provider"), file("landbridge", command.as_bytes())];
    (Release { id: "1.2.3-abc".into(), architecture: std::env::consts::ARCH.into(), files }, folder)
}

const ANSWERS: &str = "#!/bin/sh\ncase $1 in --version) echo v;; *) while read -r x; do echo '{\"Done\":{\"note\":\"well\"}}'; done;; esac\n";

async fn reach(folder: &str, release: &Release) -> Result<Machine, SetupError> {
    let way = Way { site: "lyon", place: &Place::Here, folder: Some(folder), asking: false };
    Machine::reach(&way, release, &mut Quiet).await
}

#[tokio::test]
async fn files_are_copied_once_and_the_program_answers() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("it's here").display().to_string();
    for copied in [2, 0] {
        let mut machine = reach(&folder, &release(ANSWERS).0).await.unwrap();
        assert_eq!(machine.copied, copied);
        assert!(machine.facts.folder.ends_with("it's here/1.2.3-abc"));
        let Reply::Done { note } = machine.ask(&Request::ReadSites).await.unwrap() else { panic!() };
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
    std::fs::write(format!("{folder}/1.2.3-abc/landbridge"), ANSWERS.replace("well", "ill!")).unwrap();
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
    let text = machine.ask(&Request::ReadSites).await.unwrap_err().to_string();
    assert!(text.contains("site lyon") && text.contains("out of memory"), "{text}");
}

#[test]
fn refusals_of_ssh_are_understood() {
    let judge = |code, words: &str| ssh::Refusal::judge(String::new(), Some(code), words);
    let place: Place = "me@host:2222".parse().unwrap();
    let denied = judge(255, "Welcome!\nme@host: Permission denied (publickey,password).\n");
    assert!(denied.asks);
    assert!(denied.advice(&place).contains("`ssh -v -p 2222 me@host`"), "{}", denied.advice(&place));
    let unknown = judge(255, "Host key verification failed.\r\n");
    assert!(unknown.asks && unknown.advice(&place).contains("log in once with `ssh -p 2222 me@host`"));
    let refused = judge(255, "ssh: connect to host host port 2222: Connection refused\n");
    assert!(!refused.asks && refused.advice(&place).contains("Connection refused"));
    assert!(judge(127, "").problem.contains("install an ssh client"));
}
