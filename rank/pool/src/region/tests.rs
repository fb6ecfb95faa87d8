use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::process::{Command, Stdio};

use super::*;
use crate::host::HostId;
use crate::ring::RecordKind;

const JOB: JobId = JobId(0xBEEF);

fn shape(ranks: u32) -> Shape {
    Shape { job: JOB, first: 10, ranks }
}

fn seat() -> Seat {
    let doorbell = "10.0.0.7:4242".parse().unwrap();
    Seat { pid: std::process::id(), host: HostId::own(), doorbell, probe: (1, 2) }
}

fn blocks(region: &Region) -> u64 {
    region.file().metadata().unwrap().blocks() * 512
}

#[test]
fn memory_grows_with_pairs_that_talk() {
    let region = Region::unnamed(Path::new("/dev/shm"), shape(64)).unwrap();
    let ring = region.layout.ring();
    let empty = blocks(&region);
    assert!(empty < 256 << 10, "{empty} bytes for a region nobody has joined");
    assert!(region.layout.total() > 1 << 30, "room for all pairs");
    let mut rings = Vec::new();
    for pair in 1..=20 {
        rings.push(region.producer(pair, 2 * pair).unwrap());
        let used = blocks(&region) - empty;
        assert_eq!(used, u64::from(pair) * ring, "{pair} pairs talk");
    }
}

#[test]
fn seats_are_taken_once() {
    let folder = tempfile::tempdir().unwrap();
    let region = Region::unnamed(folder.path(), shape(3)).unwrap();
    assert_eq!((region.place(9, 0), region.place(13, 0), region.place(10, INSTANCES)), (None, None, None));
    let place = region.place(12, 1).unwrap();
    assert_eq!(region.owner(place), (12, 1));
    assert_eq!((region.state(place), region.seat(place)), (SeatState::Empty, None));
    region.join(place, &seat()).unwrap();
    assert_eq!((region.state(place), region.seat(place)), (SeatState::Open, Some(seat())));
    assert_eq!(region.nap(place), 0);
    region.set_nap(place, 3);
    assert_eq!(region.nap(place), 3);
    region.leave(place);
    assert_eq!(region.state(place), SeatState::Closed);
    let again = region.join(place, &seat()).unwrap_err().to_string();
    assert!(again.contains("endpoint 1 of rank 12"), "{again}");
}

#[test]
fn who_knocks_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let region = Region::unnamed(folder.path(), shape(5)).unwrap();
    let me = region.place(11, 0).unwrap();
    region.join(me, &seat()).unwrap();
    for from in [0, 7, 19] {
        region.knock(from, me);
    }
    region.knock(3, me + 1);
    assert_eq!(region.knocking(me, |_| false).collect::<Vec<_>>(), [0, 7, 19]);
    assert_eq!(region.knocking(me, |known| known == 7).collect::<Vec<_>>(), [0, 19]);
}

#[test]
fn a_named_region_is_made_once_and_removed() {
    let folder = tempfile::tempdir().unwrap();
    let region = Region::named(folder.path(), "lyon", shape(2)).unwrap();
    let path = Region::name(folder.path(), "lyon", JOB);
    assert_eq!(path.file_name().unwrap(), "landbridge-0000beef-lyon");
    assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
    let again = Region::named(folder.path(), "lyon", shape(2)).err().unwrap().to_string();
    assert!(again.contains("left over by a dead job") && again.contains("landbridge-0000beef-lyon"), "{again}");
    assert_eq!(Region::open(&path, JOB).unwrap().shape(), region.shape());
    let other = Region::open(&path, JobId(1)).err().unwrap().to_string();
    assert!(other.contains("belongs to job 0000beef, not to 00000001"), "{other}");
    Region::remove(&path);
    Region::remove(&path);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn files_that_are_no_region() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x");
    let refused = |expected: &str| {
        let error = Region::open(&path, JOB).err().unwrap().to_string();
        assert!(error.contains(expected) && error.contains("/x"), "{error}\n  should contain: {expected}");
    };
    refused("is not there");
    std::fs::write(&path, b"").unwrap();
    refused("has only 0 bytes");
    std::fs::write(&path, vec![7; 8192]).unwrap();
    refused("not a region of this version");
    // A header that promises more than the file has.
    let mut bytes = vec![0; 8192];
    for (word, value) in [MAGIC, JOB.0.into(), 0, 4, 16 << 10].into_iter().enumerate() {
        bytes[word * 8..word * 8 + 8].copy_from_slice(&u64::to_ne_bytes(value));
    }
    std::fs::write(&path, &bytes).unwrap();
    refused("header is damaged");
}

#[test]
fn folders_that_cannot_hold_a_region() {
    for (folder, expected) in [("/no/such/folder", "No such file"), ("/proc", "/proc")] {
        for result in [Region::unnamed(Path::new(folder), shape(2)), Region::named(Path::new(folder), "lyon", shape(2))]
        {
            let error = result.err().unwrap().to_string();
            assert!(error.contains(expected) && error.contains("sites file"), "{error}");
        }
    }
    let too_many = Region::unnamed(Path::new("/dev/shm"), shape(MAX_RANKS + 1)).err().unwrap().to_string();
    assert!(too_many.contains("4097 ranks are more than the 4096"), "{too_many}");
}

#[test]
fn a_file_that_cannot_be_mapped_is_named() {
    let error = Region::open(Path::new("/proc/self/oom_score_adj"), JOB).err().unwrap().to_string();
    assert!(error.contains("/proc/self/oom_score_adj"), "{error}");
    let pipe = map(&File::open("/proc/self/status").unwrap(), Path::new("/proc/self/status"), 0, 4096);
    let error = pipe.err().unwrap().to_string();
    assert!(error.contains("cannot map a file into several processes"), "{error}");
}

fn put(producer: &mut Producer, number: u64) -> bool {
    let Some(mut space) = producer.reserve(8).unwrap() else { return false };
    space.write(0, &number.to_ne_bytes());
    space.publish(RecordKind::Frame);
    true
}

#[test]
#[ignore = "started by a_limit_on_files_is_an_error_and_no_signal"]
fn under_a_limit() {
    let error = Region::unnamed(Path::new("/dev/shm"), shape(8)).err().unwrap().to_string();
    assert!(error.contains("the limit is 1048576") && error.contains("ulimit"), "{error}");
}

#[test]
fn a_limit_on_files_is_an_error_and_no_signal() {
    let test = std::env::current_exe().unwrap();
    let script = format!("ulimit -f 1024; exec {} --ignored --exact region::tests::under_a_limit", test.display());
    let status = Command::new("bash").args(["-c", &script]).stdout(Stdio::null()).status().unwrap();
    assert!(status.success(), "{status}");
}

/// The other half of the test below: writes records until it is killed.
#[test]
#[ignore = "started by two_processes_and_a_killed_one"]
fn other_process() {
    let region = Region::open(Path::new(&std::env::var("POOL_TEST_REGION").unwrap()), JOB).unwrap();
    let mut producer = region.producer(0, 4).unwrap();
    for number in 0u64.. {
        while !put(&mut producer, number) {
            std::thread::yield_now();
        }
        if number == 0 {
            region.knock(0, 4);
        }
        if number == 1000 {
            writeln!(std::io::stderr(), "working").unwrap();
        }
    }
}

#[test]
fn two_processes_and_a_killed_one() {
    let region = Region::unnamed(Path::new("/dev/shm"), shape(2)).unwrap();
    let path = format!("/proc/{}/fd/{}", std::process::id(), region.file().as_raw_fd());
    region.join(4, &seat()).unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--ignored", "--exact", "region::tests::other_process", "--nocapture"]);
    command.env("POOL_TEST_REGION", path).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap() == "working"));
    assert_eq!(region.knocking(4, |_| false).collect::<Vec<_>>(), [0]);
    let mut consumer = region.consumer(0, 4).unwrap();
    let mut expected = 0u64;
    let mut drain = |until: Option<u64>| {
        while until.is_none_or(|until| expected < until) {
            let Some(record) = consumer.oldest().unwrap() else {
                if until.is_none() {
                    break;
                }
                std::thread::yield_now();
                continue;
            };
            let mut bytes = [0; 8];
            consumer.read(&record, 0, &mut bytes);
            assert_eq!(u64::from_ne_bytes(bytes), expected);
            consumer.done(record, false);
            expected += 1;
        }
    };
    drain(Some(50_000));
    child.kill().unwrap();
    child.wait().unwrap();
    // All records published before the kill arrive whole; there are no others.
    drain(None);
}
