use super::*;

/// Sends a line as a rank does.
fn send(server: &mut Server, local: usize, line: &str) -> Vec<Event> {
    let commands = Lines::default().feed(format!("{line}\n").as_bytes()).unwrap();
    commands.iter().flat_map(|command| server.command(local, command)).collect()
}

fn replies(events: &[Event]) -> Vec<(usize, &str)> {
    let reply = |event| match event {
        &Event::Reply { local, ref line } => Some((local, line.trim_end())),
        _ => None,
    };
    events.iter().filter_map(reply).collect()
}

fn server() -> Server {
    Server::new(types::JobId(7), 4, &[0, 1], "(vector,(0,2,2))".into())
}

#[test]
fn a_rank_gets_its_job_and_mapping() {
    let mut server = server();
    let events = send(&mut server, 1, "cmd=init pmi_version=1 pmi_subversion=2");
    assert_eq!(replies(&events), [(1, "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0")]);
    assert!(events.contains(&Event::Initialised { local: 1 }));
    let events = send(&mut server, 1, "cmd=get kvsname=landbridge key=PMI_process_mapping");
    assert_eq!(replies(&events), [(1, "cmd=get_result rc=0 msg=success value=(vector,(0,2,2))")]);
    assert_eq!(replies(&send(&mut server, 1, "cmd=get_universe_size")), [(1, "cmd=universe_size size=4 rc=0")]);
    let numbers = [0, 1].map(|local| replies(&send(&mut server, local, "cmd=get_appnum"))[0].1.to_owned());
    assert_eq!(numbers, ["cmd=appnum appnum=0 rc=0", "cmd=appnum appnum=1 rc=0"]);
    assert_eq!((server.state(0), server.state(1)), (MpiState::Untouched, MpiState::Running));
    send(&mut server, 1, "cmd=finalize");
    assert_eq!(server.state(1), MpiState::Finalised);
}

#[test]
fn a_barrier_carries_what_was_put_since_the_last() {
    let mut server = server();
    send(&mut server, 0, "cmd=put kvsname=landbridge key=bc-0 value=one two");
    assert_eq!(send(&mut server, 0, "cmd=barrier_in"), []);
    let entries = vec![("bc-0".to_owned(), "one two".to_owned())];
    assert_eq!(send(&mut server, 1, "cmd=barrier_in"), [Event::Barrier { entries }]);
    let out = server.barrier_out(vec![("bc-2".into(), "remote".into())]);
    assert_eq!(replies(&out), [(0, "cmd=barrier_out rc=0"), (1, "cmd=barrier_out rc=0")]);
    let got = send(&mut server, 0, "cmd=get kvsname=landbridge key=bc-2");
    assert_eq!(replies(&got), [(0, "cmd=get_result rc=0 msg=success value=remote")]);
    send(&mut server, 0, "cmd=barrier_in");
    assert_eq!(send(&mut server, 1, "cmd=barrier_in"), [Event::Barrier { entries: vec![] }]);
}

#[test]
fn unknown_keys_spawn_and_nonsense_get_errors() {
    let mut server = server();
    assert!(replies(&send(&mut server, 0, "cmd=get kvsname=k key=none"))[0].1.contains("rc=-1"));
    assert!(replies(&send(&mut server, 0, "mcmd=spawn\nnprocs=1\nendcmd"))[0].1.contains("spawn_result rc=-1"));
    let long = format!("cmd=put kvsname=k key=k value={}", "x".repeat(5000));
    assert!(replies(&send(&mut server, 0, &long))[0].1.contains("too_long"));
    assert!(
        matches!(&send(&mut server, 0, "cmd=dance")[..], [Event::Broken { problem, .. }] if problem.contains("dance"))
    );
    send(&mut server, 0, "cmd=barrier_in");
    assert!(matches!(&send(&mut server, 0, "cmd=barrier_in")[..], [Event::Broken { .. }]));
}

#[test]
fn a_spawn_of_several_programs_is_refused_once() {
    let mut server = server();
    let first = "mcmd=spawn\nnprocs=1\nexecname=./a\ntotspawns=2\nspawnssofar=1\nendcmd";
    assert_eq!(send(&mut server, 0, first), []);
    let events = send(&mut server, 0, "mcmd=spawn\nnprocs=1\nexecname=./b c\ntotspawns=2\nspawnssofar=2\nendcmd");
    assert_eq!(replies(&events).len(), 1);
    assert_eq!(events[1], Event::SpawnRefused { local: 0, program: "./b c".into() });
}

#[test]
fn an_abort_has_code_and_message() {
    let events = send(&mut server(), 1, "cmd=abort exitcode=7 error_msg=all is lost");
    assert_eq!(events, [Event::Abort { local: 1, code: 7, message: "all is lost".into() }]);
}

#[test]
fn two_jobs_on_a_node_do_not_share_a_name() {
    let name = |job| {
        let mut server = Server::new(types::JobId(job), 1, &[0], String::new());
        replies(&send(&mut server, 0, "cmd=get_my_kvsname"))[0].1.to_owned()
    };
    assert_ne!(name(1), name(2));
}
