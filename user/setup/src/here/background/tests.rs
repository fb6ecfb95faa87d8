use super::*;

#[test]
fn a_process_that_looks_keeps_nobody_from_the_lock() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let opened = || File::open(file.path()).unwrap();
    let (looks, wants) = (opened(), opened());
    flock(&looks, FlockOperation::NonBlockingLockShared).unwrap();
    let end = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(100));
        drop(looks);
    });
    assert!(lock(&wants));
    end.join().unwrap();
    assert!(!lock(&opened()), "it is taken for good");
}
