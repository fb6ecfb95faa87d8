use super::*;
use types::sites::Memory;

use job::order::example;

fn try_it(command: &[&str]) -> Result<Prepared, PrepareError> {
    try_with(command, "a:n1*2;b:n1*3")
}

fn try_with(command: &[&str], roster: &str) -> Result<Prepared, PrepareError> {
    try_on(job::message::MpiChoice::Auto, command, roster, &[])
}

fn try_on(
    mpi: job::message::MpiChoice,
    command: &[&str],
    roster: &str,
    settings: &[(&str, &str)],
) -> Result<Prepared, PrepareError> {
    let part = Part {
        command: command.iter().map(|word| word.as_bytes().to_vec()).collect(),
        directory: b"/tmp".to_vec(),
        settings: vec![(b"X".to_vec(), b"s".to_vec())],
        ..Part::default()
    };
    let program = Program {
        parts: vec![part],
        environment: vec![(b"PATH".to_vec(), b"/usr/bin:/bin".to_vec()), (b"X".to_vec(), b"y".to_vec())],
        mpi,
        ..Program::default()
    };
    let mut order = example(Memory::Node, 0);
    order.0.job = types::JobId(0xabc);
    let mut machine = vec![("X".into(), "m".into()), ("M".into(), "m".into())];
    machine.extend(settings.iter().map(|(name, value)| (name.into(), value.into())));
    prepare(&order, &reach(), &program, roster, &machine)
}

fn reach() -> Reach {
    Reach {
        gateways: [("gw1", "10.0.0.1:7700"), ("gw2", "10.0.0.2:7700")]
            .map(|(name, address)| GatewayAddress { name: name.into(), address: address.into() })
            .to_vec(),
        local: "10.0.0.7".parse().unwrap(),
    }
}

#[test]
fn ranks_learn_their_place() {
    let prepared = try_it(&["sh", "-c", "true"]).unwrap();
    assert_eq!((prepared.first, prepared.count, prepared.mpi), (Rank(2), 3, None));
    let environment = prepared.rank_environment(1, 65536, &Start::Pmi(9));
    for (name, value) in [
        ("X", "s"),
        ("M", "m"),
        ("LANDBRIDGE_JOB", "00000abc"),
        ("LANDBRIDGE_RANK", "3"),
        ("LANDBRIDGE_LOCAL_RANK", "1"),
        ("LANDBRIDGE_SIZE", "5"),
        ("LANDBRIDGE_ADDRESS", "10.0.0.7"),
        ("LANDBRIDGE_GATEWAYS", "gw1=10.0.0.1:7700,gw2=10.0.0.2:7700"),
        ("LANDBRIDGE_ROSTER", "a:n1*2;b:n1*3"),
        ("LANDBRIDGE_WINDOW", "65536"),
        ("PMI_RANK", "3"),
        ("PMI_FD", "9"),
    ] {
        assert_eq!(environment.get(name), Some(OsStr::new(value)), "{name}");
    }
}

#[test]
fn the_secret_is_not_in_the_environment() {
    let prepared = try_it(&["sh", "-c", "true"]).unwrap();
    let environment = prepared.rank_environment(0, 65536, &Start::Pmi(9));
    let secret = prepared.secret.to_hex();
    assert!(environment.iter().all(|(_, value)| !value.to_string_lossy().contains(&secret)));
}

#[test]
fn ranks_of_an_encrypted_site_know_the_keys_of_its_gateways() {
    let mut order = example(Memory::Node, 0);
    let mut environment = Environment::default();
    let reach = Reach { gateways: Vec::new(), local: "10.0.0.7".parse().unwrap() };
    let roster: Roster = "a:n1*2;b:n1*3".parse().unwrap();
    describe(&mut environment, &order, &reach, &roster, reach.local);
    assert_eq!(environment.get("LANDBRIDGE_INSIDE_KEYS"), None);
    order.0.inside = Inside::Encrypted;
    order.0.keys.next = Some(types::sites::Fingerprint([8; 32]));
    describe(&mut environment, &order, &reach, &roster, reach.local);
    let keys = format!("sha256:{},sha256:{}", "07".repeat(32), "08".repeat(32));
    assert_eq!(environment.get("LANDBRIDGE_INSIDE_KEYS"), Some(OsStr::new(&keys)));
}

#[test]
fn ranks_listen_at_addresses_of_either_family_but_no_link_local_one() {
    let order = example(Memory::Node, 0);
    let at = |local: &str| {
        let reach = Reach { gateways: Vec::new(), local: local.parse().unwrap() };
        listen_at(&order, &reach).map(|address| address.to_string()).map_err(|error| error.to_string())
    };
    for (local, expected) in [("10.0.0.7", "10.0.0.7"), ("2001:db8::7", "2001:db8::7"), ("::ffff:10.0.0.7", "10.0.0.7")]
    {
        assert_eq!(at(local).as_deref(), Ok(expected));
    }
    let error = at("fe80::7").unwrap_err();
    assert!(error.starts_with("address fe80::7 is link-local") && error.contains("`address`"), "{error}");
}

#[test]
fn ranks_that_share_cores_are_told() {
    let cores = std::thread::available_parallelism().unwrap().get();
    for (ranks, crowd, eager) in [(cores, None, None), (2 * cores, Some("2"), Some("8KiB"))] {
        let prepared = try_with(&["sh", "-c", "true"], &format!("a:n1*1;b:n1*{ranks}")).unwrap();
        let environment = prepared.rank_environment(0, 65536, &Start::Pmi(9));
        assert_eq!(environment.get("LANDBRIDGE_CROWDED"), crowd.map(OsStr::new), "{ranks} ranks");
        assert_eq!(environment.get("LANDBRIDGE_EAGER_MEMORY"), eager.map(OsStr::new), "{ranks} ranks");
    }
}

#[test]
fn programs_without_an_mpi_get_the_provider_when_they_use_libfabric() {
    use job::message::MpiChoice::{Auto, Libfabric};
    let given = [("LANDBRIDGE_PROVIDER", "/opt/lb/liblandbridge-fi.so")];
    let error = try_on(Libfabric, &["sh"], "a:n1*1;b:n1*1", &given).unwrap_err().to_string();
    assert!(error.contains("/opt/lb/liblandbridge-fi.so"), "{error}");
    let given = [("LANDBRIDGE_PROVIDER", "/bin/sh")];
    for (choice, provider) in [(Auto, None), (Libfabric, Some("landbridge"))] {
        let prepared = try_on(choice, &["sh"], "a:n1*1;b:n1*1", &given).unwrap();
        assert_eq!((prepared.mpi, prepared.uses_libfabric), (None, choice == Libfabric));
        let environment = prepared.rank_environment(0, 65536, &Start::Pmi(9));
        assert_eq!(environment.get("FI_PROVIDER"), provider.map(OsStr::new), "{choice:?}");
        assert_eq!(environment.get("FI_PROVIDER_PATH"), provider.map(|_| OsStr::new("/bin")), "{choice:?}");
        assert_eq!(environment.get("PMI_FD"), Some(OsStr::new("9")));
    }
}

#[test]
fn ranks_are_told_of_memory_that_only_their_mpi_sees() {
    let shared = |family, count, settings: &[(&str, &str)]| {
        let settings = [&[("LANDBRIDGE_PROVIDER", "/bin/sh")], settings].concat();
        let choice = job::message::MpiChoice::Named(family);
        let prepared = try_on(choice, &["sh"], &format!("a:n1*1;b:n1*{count}"), &settings).unwrap();
        let environment = prepared.rank_environment(0, 65536, &Start::Pmi(9));
        environment.get("LANDBRIDGE_MPI_SHM").map(OsStr::to_owned)
    };
    assert_eq!(shared(Family::Mpich, 2, &[]), Some("messages".into()));
    assert_eq!(shared(Family::Mpich, 1, &[]), None, "nobody is beside it");
    assert_eq!(shared(Family::Mpich, 2, &[("MPIR_CVAR_NOLOCAL", "1")]), None);
    assert_eq!(shared(Family::Intel, 2, &[("I_MPI_FABRICS", "ofi")]), Some("messages".into()), "its collectives");
}

#[test]
fn a_node_prepares_only_the_programs_of_its_ranks() {
    let part = |first, word: &str, setting: &str| Part {
        first,
        command: vec![word.into()],
        directory: b"/tmp".to_vec(),
        settings: vec![(b"X".to_vec(), setting.into())],
        ..Part::default()
    };
    let try_parts = |parts: Vec<Part>, roster: &str| {
        let program = Program { parts, environment: vec![(b"PATH".to_vec(), b"/bin".to_vec())], ..Program::default() };
        prepare(&example(Memory::Node, 0), &reach(), &program, roster, &[])
    };
    // The node has ranks 2 to 4.
    let parts = || vec![part(0, "no-such-program", "a"), part(2, "sh", "b"), part(4, "true", "c")];
    let prepared = try_parts(parts(), "a:n1*2;b:n1*3").unwrap();
    let words: Vec<_> = prepared.parts.iter().map(|part| (&part.words[0], part.local.clone())).collect();
    assert_eq!(words, [(&"sh".into(), 0..2), (&"true".into(), 2..3)]);
    assert_eq!(prepared.program_numbers(), [1, 1, 2]);
    let settings = [0, 1, 2].map(|local| {
        let environment = prepared.rank_environment(local, 65536, &Start::Pmi(9));
        environment.get("X").unwrap().to_owned()
    });
    assert_eq!(settings, ["b", "b", "c"]);
    let error = try_parts(parts(), "a:n1*1;b:n1*3").unwrap_err().to_string();
    assert!(error.starts_with("program no-such-program not found"), "{error}");
}

#[test]
fn programs_of_different_libraries_are_not_mixed() {
    let part = |word: &str, mpi, uses_libfabric| PreparedPart {
        local: 0..1,
        path: None,
        words: vec![word.into()],
        directory: "/tmp".into(),
        environment: Environment::default(),
        mpi,
        uses_libfabric,
        pmix: None,
        collectives: Coverage::Native,
        provider: PathBuf::new(),
    };
    let mpich = part("./a", Some(Family::Mpich), false);
    assert!(same_mpi(&mpich, &part("./b", Some(Family::Mpich), false)).is_ok());
    let error = same_mpi(&mpich, &part("./b", None, false)).unwrap_err().to_string();
    assert!(error.starts_with("program ./a uses mpich, and ./b uses no MPI: all programs"), "{error}");
    let error = same_mpi(&mpich, &part("./b", Some(Family::OpenMpi), false)).unwrap_err().to_string();
    assert!(error.contains("./b uses openmpi"), "{error}");
}

#[test]
fn a_missing_program_is_named() {
    let error = try_it(&["./no-such-program"]).unwrap_err().to_string();
    assert!(error.starts_with("program ./no-such-program not found (looked in /tmp)"), "{error}");
}
