//! Sites with several gateways.

use super::*;

/// The second gateway of site b. Site a also has two, each at the end of a trunk.
fn second() -> (Table<u32>, TrunkId, TrunkId) {
    let trunk = || TrunkInfo { up: true, ..TrunkInfo::new("a".into()) };
    let table = Table::new(("b".into(), 1), vec!["n1".into()], vec![trunk(), trunk()], 64 << 20, PATIENCE);
    (table, TrunkId(0), TrunkId(1))
}

const RELAYS: Part = Part::Relay { window: 1 << 20 };

#[test]
fn a_gateway_that_does_not_lead_is_one_more_way() {
    let (mut table, first, second) = second();
    let roster: Roster = "a:n1*2;b:n1*2".parse().unwrap();
    let open = JobMessage::Open { job: JOB, secret: secret(), roster, home: "a".into(), part: RELAYS };
    from_trunk(&mut table, first, open.clone()).unwrap();
    let effects = table.take_effects();
    assert!(
        !effects.iter().any(|e| matches!(
            e,
            Effect::StartAgents(..) | Effect::ToTrunk(_, Control::Job(JobMessage::Opened { .. }))
        ))
    );
    for trunk in [first, second] {
        assert!(
            effects.contains(&Effect::ToTrunk(trunk, Control::Job(JobMessage::Here { job: JOB, whole: false }))),
            "{effects:?}"
        );
    }
    let frame = frame(rank(1, 2), rank(0, 0));
    assert!(matches!(table.route(Origin::Member, &frame), Route::Trunk(trunk) if trunk == first));
    // The second gateways of both sites pair off.
    from_trunk(&mut table, second, open).unwrap();
    table.take_effects();
    table.join(JOB, rank(1, 2), 2).unwrap();
    assert_eq!(table.take_effects(), []);
    assert!(matches!(table.route(Origin::Member, &frame), Route::Trunk(trunk) if trunk == second));
    table.trunk_away(second, "cut");
    assert!(table.take_effects().contains(&Effect::Passage(2, SiteId(0), Passage::Broken)));
    assert!(matches!(table.route(Origin::Member, &frame), Route::Trunk(trunk) if trunk == first));
    table.trunk_away(first, "cut too");
    assert!(table.take_effects().contains(&Effect::Passage(2, SiteId(0), Passage::Away("cut too".into()))));
    table.trunk_up(second);
    assert!(table.take_effects().contains(&Effect::Passage(2, SiteId(0), Passage::Open)));
    // A restarted gateway is the last choice: ranks may not be connected to it yet.
    table.trunk_up(first);
    table.trunk_away(second, "killed");
    table.trunk_lost(second, "killed");
    table.trunk_up(second);
    let open = JobMessage::Open {
        job: JOB,
        secret: secret(),
        roster: "a:n1*2;b:n1*2".parse().unwrap(),
        home: "a".into(),
        part: RELAYS,
    };
    from_trunk(&mut table, second, open).unwrap();
    assert!(matches!(table.route(Origin::Member, &frame), Route::Trunk(trunk) if trunk == first));
    // Until it reports that they are. Then it is used as before.
    from_trunk(&mut table, second, JobMessage::Here { job: JOB, whole: false }).unwrap();
    assert!(matches!(table.route(Origin::Member, &frame), Route::Trunk(trunk) if trunk == first));
    from_trunk(&mut table, second, JobMessage::Here { job: JOB, whole: true }).unwrap();
    assert!(matches!(table.route(Origin::Member, &frame), Route::Trunk(trunk) if trunk == second));
    // When the last rank has connected here, all gateways are notified.
    table.take_effects();
    table.join(JOB, rank(1, 3), 3).unwrap();
    let here = |trunk| Effect::ToTrunk(trunk, Control::Job(JobMessage::Here { job: JOB, whole: true }));
    assert_eq!(table.take_effects(), [here(first), here(second)]);
    // The launcher closes the job at all its gateways. The first order ends it, and the others are answered.
    table.take_effects();
    let closed = |traffic| JobMessage::Closed { job: JOB, site: "b".into(), traffic, led: false };
    from_trunk(&mut table, second, JobMessage::close(JOB)).unwrap();
    let effects = table.take_effects();
    assert!(
        effects
            .iter()
            .any(|e| matches!(e, Effect::ToTrunk(t, Control::Job(JobMessage::Closed { .. })) if *t == second)),
        "{effects:?}"
    );
    assert!(effects.iter().any(|e| matches!(e, Effect::Dismiss(2, _))) && table.jobs.is_empty());
    from_trunk(&mut table, first, JobMessage::close(JOB)).unwrap();
    assert_eq!(table.take_effects(), [Effect::ToTrunk(first, closed(Default::default()).into())]);
}

#[test]
fn the_launcher_hears_when_a_site_that_was_lost_is_reached_again() {
    let (mut table, first, second) = second();
    table.siblings = true;
    let roster: Roster = "b:n1*2;a:n1*2".parse().unwrap();
    table.open(JOB, secret(), roster, "b", RELAYS, LAUNCHER).unwrap();
    let here = |whole| JobMessage::Here { job: JOB, whole };
    from_trunk(&mut table, first, here(false)).unwrap();
    from_trunk(&mut table, second, here(false)).unwrap();
    let told = |table: &mut Table<u32>| {
        let effects = table.take_effects().into_iter();
        let told = effects.filter_map(|effect| match effect {
            Effect::ToMember(
                LAUNCHER,
                message @ Control::Job(JobMessage::SiteLost { .. } | JobMessage::SiteFound { .. }),
            ) => Some(message),
            _ => None,
        });
        told.collect::<Vec<_>>()
    };
    table.trunk_away(first, "cut");
    table.trunk_lost(first, "cut");
    assert_eq!(told(&mut table), [], "there is another route");
    table.trunk_away(second, "cut");
    table.trunk_lost(second, "cut");
    assert!(matches!(&told(&mut table)[..], [Control::Job(JobMessage::SiteLost { site, .. })] if site == "a"));
    table.trunk_up(first);
    from_trunk(&mut table, first, here(true)).unwrap();
    assert_eq!(told(&mut table), [Control::Job(JobMessage::SiteFound { job: JOB, site: "a".into() })]);
    from_trunk(&mut table, first, here(true)).unwrap();
    assert_eq!(told(&mut table), []);
}

#[test]
fn while_the_partner_is_away_the_others_share_what_it_carried() {
    let trunk = || TrunkInfo { up: true, ..TrunkInfo::new("a".into()) };
    let trunks = vec![trunk(), trunk(), trunk()];
    let mut table = Table::<u32>::new(("b".into(), 1), vec!["n1".into()], trunks, 64 << 20, PATIENCE);
    let roster: Roster = "a:n1*2;b:n1*2".parse().unwrap();
    let open = JobMessage::Open { job: JOB, secret: secret(), roster, home: "a".into(), part: RELAYS };
    (0..3).for_each(|trunk| from_trunk(&mut table, TrunkId(trunk), open.clone()).unwrap());
    table.join(JOB, rank(1, 2), 2).unwrap();
    let frame = frame(rank(1, 2), rank(0, 0));
    let count = |table: &mut Table<u32>| {
        let mut counts = [0; 3];
        for _ in 0..24 {
            let Route::Trunk(trunk) = table.route(Origin::Member, &frame) else { panic!() };
            counts[trunk.0] += 1;
        }
        counts
    };
    assert_eq!(count(&mut table), [0, 24, 0]);
    table.trunk_away(TrunkId(1), "cut");
    assert_eq!(count(&mut table), [12, 0, 12]);
    table.trunk_away(TrunkId(0), "cut");
    assert_eq!(count(&mut table), [0, 0, 24]);
    table.trunk_up(TrunkId(1));
    assert_eq!(count(&mut table), [0, 24, 0]);
    // A site with more gateways than the other: the last ones have no partner.
    table.number = 3;
    from_trunk(&mut table, TrunkId(2), JobMessage::Here { job: JOB, whole: true }).unwrap();
    table.trunk_up(TrunkId(0));
    assert_eq!(count(&mut table), [8, 8, 8]);
}

#[test]
fn at_home_every_gateway_of_the_other_sites_is_asked_now_or_when_it_can_be_reached() {
    let (mut table, first, second) = second();
    table.siblings = true;
    table.trunks[first.0].up = false;
    let roster: Roster = "b:n1*2;a:n1*2".parse().unwrap();
    table.open(JOB, secret(), roster, "b", RELAYS, LAUNCHER).unwrap();
    let asks = |effects: &[Effect<u32>]| {
        let asked = effects.iter().filter_map(|e| match e {
            Effect::ToTrunk(trunk, Control::Job(JobMessage::Open { .. })) => Some(*trunk),
            _ => None,
        });
        asked.collect::<Vec<_>>()
    };
    assert_eq!(asks(&table.take_effects()), [second]);
    table.trunk_up(first);
    assert_eq!(asks(&table.take_effects()), [first]);
    // After a break too: the other gateway may have given up this one meanwhile.
    table.trunk_away(second, "cut");
    table.trunk_up(second);
    assert_eq!(asks(&table.take_effects()), [second]);
    table.trunk_away(second, "killed");
    table.trunk_lost(second, "killed");
    table.trunk_up(second);
    assert_eq!(asks(&table.take_effects()), [second]);
    table.job_from_launcher(JOB, &JobMessage::close(JOB)).unwrap();
    for trunk in [first, second] {
        assert!(!table.jobs.is_empty());
        let closed = JobMessage::Closed { job: JOB, site: "a".into(), traffic: Default::default(), led: true };
        from_trunk(&mut table, trunk, closed).unwrap();
    }
    let effects = table.take_effects();
    let told =
        effects.iter().filter(|e| matches!(e, Effect::ToMember(LAUNCHER, Control::Job(JobMessage::Closed { .. }))));
    assert_eq!((told.count(), table.jobs.len()), (3, 0), "{effects:?}");
}

/// The leading gateways of both sites; home's is suspended for longer than the other's patience with it.
#[test]
fn gateways_that_were_suspended_in_turn_are_asked_for_the_job_by_both() {
    let roster = || "a:n1*2;b:n1*2".parse::<Roster>().unwrap();
    let (mut b, first, second) = second();
    b.siblings = true;
    let open = |part| JobMessage::Open { job: JOB, secret: secret(), roster: roster(), home: "a".into(), part };
    from_trunk(&mut b, first, open(Part::Lead)).unwrap();
    b.agents_started(JOB, Ok(()));
    from_trunk(&mut b, second, open(RELAYS)).unwrap();
    let trunk = TrunkInfo { up: true, ..TrunkInfo::new("b".into()) };
    let mut a = Table::new(("a".into(), 0), vec!["n1".into()], vec![trunk], 64 << 20, PATIENCE);
    let to_b = TrunkId(0);
    a.open(JOB, secret(), roster(), "a", Part::Lead, LAUNCHER).unwrap();
    a.agents_started(JOB, Ok(()));
    let asked = |a: &mut Table<u32>| {
        let to_trunk = a.take_effects().into_iter().filter_map(|effect| match effect {
            Effect::ToTrunk(_, Control::Job(open @ JobMessage::Open { .. })) => Some(open),
            _ => None,
        });
        to_trunk.collect::<Vec<_>>()
    };
    assert_eq!(asked(&mut a), [open(Part::Lead)]);
    // Until the other gateway has the job, only the request to lead it counts.
    a.trunk_away(to_b, "cut");
    a.trunk_up(to_b);
    assert_eq!(asked(&mut a), []);
    from_trunk(&mut a, to_b, JobMessage::Opened { job: JOB, site: "b".into(), window: 1 << 20 }).unwrap();
    a.job_from_launcher(JOB, &open(RELAYS)).unwrap();
    assert_eq!(asked(&mut a), []);
    b.trunk_away(first, "frozen");
    b.trunk_lost(first, "frozen");
    b.trunk_up(first);
    // What the gateway of a notices when it is resumed.
    a.trunk_away(to_b, "reset");
    a.trunk_up(to_b);
    let again = asked(&mut a);
    assert_eq!(again.len(), 1);
    from_trunk(&mut b, first, again[0].clone()).unwrap();
    b.take_effects();
    b.trunk_away(second, "frozen");
    b.trunk_lost(second, "frozen");
    let effects = b.take_effects();
    assert!(b.jobs.contains_key(&JOB) && !effects.iter().any(ends_the_job), "{effects:?}");
    // It reports to the first gateway again.
    b.agent_exited(JOB, NodeId(0), "exit code 1".into());
    let effects = b.take_effects();
    let lost = |message: &Control| matches!(message, Control::Job(JobMessage::AgentLost { .. }));
    let reports =
        |effect: &Effect<u32>| matches!(effect, Effect::ToTrunk(to, message) if *to == first && lost(message));
    assert!(effects.iter().any(reports), "{effects:?}");
}

#[test]
fn a_late_answer_to_an_earlier_end_leaves_no_job_open_elsewhere() {
    let (mut table, first, second) = second();
    table.siblings = true;
    let roster: Roster = "b:n1*2;a:n1*2".parse().unwrap();
    let closed = || JobMessage::Closed { job: JOB, site: "a".into(), traffic: Default::default(), led: true };
    let close = |trunk| Effect::ToTrunk(trunk, Control::Job(JobMessage::left(JOB)));
    table.open(JOB, secret(), roster.clone(), "b", RELAYS, LAUNCHER).unwrap();
    table.job_from_launcher(JOB, &JobMessage::close(JOB)).unwrap();
    [first, second].into_iter().for_each(|trunk| from_trunk(&mut table, trunk, closed()).unwrap());
    assert!(table.jobs.is_empty());
    // Messages from those gateways are answered now, because they may not have heard of the end. They will answer that
    // in turn.
    for trunk in [first, second] {
        from_trunk(&mut table, trunk, JobMessage::Here { job: JOB, whole: true }).unwrap();
        assert!(table.take_effects().contains(&close(trunk)));
    }
    // A launcher that lost its connection reopens its job, and those answers arrive only then.
    table.open(JOB, secret(), roster, "b", RELAYS, LAUNCHER).unwrap();
    for trunk in [first, second] {
        from_trunk(&mut table, trunk, closed()).unwrap();
        assert!(table.take_effects().contains(&close(trunk)), "it has the job open again");
        // The reopened job ends, too.
        from_trunk(&mut table, trunk, closed()).unwrap();
        assert!(!table.take_effects().contains(&close(trunk)));
    }
}

#[test]
fn a_job_that_nobody_uses_or_wants_is_not_kept() {
    let (mut table, first, second) = second();
    let granted = table.grants.granted();
    let roster: Roster = "a:n1*2;b:n1*2".parse().unwrap();
    let open =
        || JobMessage::Open { job: JOB, secret: secret(), roster: roster.clone(), home: "a".into(), part: RELAYS };
    let wanted = |trunk| Effect::ToTrunk(trunk, Control::Job(JobMessage::Wanted { job: JOB }));
    let timer = |effects: &[Effect<u32>]| {
        let set = effects.iter().find_map(|effect| match effect {
            Effect::Timer(JOB, epoch, Timer::Wanted, WANTED) => Some(*epoch),
            _ => None,
        });
        set.expect("a timer is set")
    };
    [first, second].into_iter().for_each(|trunk| from_trunk(&mut table, trunk, open()).unwrap());
    let epoch = timer(&table.take_effects());
    // Both gateways that asked for the job are asked, as long as nobody is connected.
    table.timer(JOB, epoch, Timer::Wanted);
    let effects = table.take_effects();
    assert!(effects.contains(&wanted(first)) && effects.contains(&wanted(second)), "{effects:?}");
    assert_eq!(timer(&effects), epoch);
    table.join(JOB, rank(1, 2), 2).unwrap();
    table.take_effects();
    table.timer(JOB, epoch, Timer::Wanted);
    assert_eq!(timer(&table.take_effects()), epoch);
    table.leave(JOB, rank(1, 2).slot, &2, Leave::Goodbye);
    table.timer(JOB, epoch, Timer::Wanted);
    assert!(table.take_effects().contains(&wanted(first)));
    // One of them has ended the job, unnoticed here; then the other.
    from_trunk(&mut table, second, JobMessage::left(JOB)).unwrap();
    assert!(table.jobs.contains_key(&JOB));
    table.take_effects();
    table.timer(JOB, epoch, Timer::Wanted);
    let effects = table.take_effects();
    assert!(effects.contains(&wanted(first)) && !effects.contains(&wanted(second)), "{effects:?}");
    from_trunk(&mut table, first, JobMessage::left(JOB)).unwrap();
    assert_eq!((table.jobs.len(), table.grants.granted()), (0, granted));
}

#[test]
fn only_a_job_that_was_asked_for_here_is_said_to_be_wanted() {
    let close = Effect::ToTrunk(A, Control::Job(JobMessage::left(JOB)));
    let asked = |table: &mut Table<u32>| {
        table.take_effects();
        from_trunk(table, A, JobMessage::Wanted { job: JOB }).unwrap();
        table.take_effects()
    };
    // The job is not known here: this gateway may have restarted.
    let mut table = table();
    assert_eq!(asked(&mut table), std::slice::from_ref(&close));
    open_home(&mut table);
    assert_eq!(asked(&mut table), []);
    table.job_from_launcher(JOB, &JobMessage::close(JOB)).unwrap();
    assert_eq!(asked(&mut table), [], "it is already ending");
    // A job without the asking site, or one that started elsewhere, is answered in the same way.
    let mut table = self::table();
    let roster: Roster = "b:n1*2;c:n1*1".parse().unwrap();
    table.open(JOB, secret(), roster, "b", Part::Lead, LAUNCHER).unwrap();
    assert_eq!(asked(&mut table), std::slice::from_ref(&close));
    let mut table = self::table();
    open_remote(&mut table);
    assert_eq!(asked(&mut table), std::slice::from_ref(&close));
}

/// An order to end the job anywhere: to other gateways, or to agents.
fn ends_the_job(effect: &Effect<u32>) -> bool {
    let closes = |message: &Control| matches!(message, Control::Job(JobMessage::Close { everywhere: true, .. }));
    matches!(effect, Effect::KillAgents(_) | Effect::Release(_) | Effect::Timer(_, _, Timer::Grace, _))
        || matches!(effect, Effect::ToTrunk(_, message) if closes(message))
}

fn left(trunk: TrunkId) -> Effect<u32> {
    Effect::ToTrunk(trunk, JobMessage::left(JOB).into())
}

#[test]
fn a_gateway_that_hears_neither_launcher_nor_agents_leaves_the_job_to_its_siblings() {
    for siblings in [false, true] {
        let (mut table, first, second) = second();
        table.siblings = siblings;
        table.open(JOB, secret(), "b:n1*2;a:n1*2".parse().unwrap(), "b", Part::Lead, LAUNCHER).unwrap();
        table.agents_started(JOB, Ok(()));
        let agent = Identity { site: SiteId(0), slot: Slot::agent(NodeId(0)).unwrap() };
        table.join(JOB, agent, 5).unwrap();
        [first, second]
            .into_iter()
            .for_each(|trunk| from_trunk(&mut table, trunk, JobMessage::Here { job: JOB, whole: false }).unwrap());
        // The gateway's cable is pulled: it hears nobody.
        table.take_effects();
        table.leave(JOB, Slot::LAUNCHER, &LAUNCHER, Leave::Silent("no sign of life".into()));
        let effects = table.take_effects();
        assert_eq!(effects.iter().any(ends_the_job), !siblings, "{effects:?}");
        assert_eq!(effects.contains(&Effect::Leave(JOB)), siblings);
        assert_eq!(effects.contains(&left(first)) && effects.contains(&left(second)), siblings);
        assert_eq!(table.jobs.is_empty(), siblings);
        if siblings {
            // The launcher dials again when it can, and the gateway relays.
            table.open(JOB, secret(), "b:n1*2;a:n1*2".parse().unwrap(), "b", RELAYS, LAUNCHER).unwrap();
            table.join(JOB, agent, 6).unwrap();
        }
    }
}

#[test]
fn a_lead_that_is_cut_off_from_the_launchers_site_leaves_its_agents_to_its_siblings() {
    let mut table = table();
    table.siblings = true;
    open_remote(&mut table);
    table.trunk_lost(A, "cut");
    let effects = table.take_effects();
    assert!(!effects.iter().any(ends_the_job), "{effects:?}");
    assert!(effects.contains(&Effect::Leave(JOB)) && effects.contains(&left(C)), "{effects:?}");
    // Before its agents run, no other gateway has the job.
    from_trunk(&mut table, A, open_from_a()).unwrap();
    table.take_effects();
    table.trunk_lost(A, "cut");
    assert!(table.take_effects().iter().any(ends_the_job));
}

#[test]
fn a_lead_that_was_given_up_has_no_say_and_relays_again() {
    let (mut table, first, second) = second();
    table.open(JOB, secret(), "b:n1*2;a:n1*2".parse().unwrap(), "b", Part::Lead, LAUNCHER).unwrap();
    table.agents_started(JOB, Ok(()));
    from_trunk(&mut table, first, JobMessage::Opened { job: JOB, site: "a".into(), window: 1 << 20 }).unwrap();
    table
        .job_from_launcher(
            JOB,
            &JobMessage::Open {
                job: JOB,
                secret: secret(),
                roster: "b:n1*2;a:n1*2".parse().unwrap(),
                home: "b".into(),
                part: RELAYS,
            },
        )
        .unwrap();
    [first, second]
        .into_iter()
        .for_each(|trunk| from_trunk(&mut table, trunk, JobMessage::Here { job: JOB, whole: true }).unwrap());
    table.take_effects();
    let told = |effects: &[Effect<u32>]| {
        let told = effects.iter().filter_map(|effect| match effect {
            Effect::ToMember(LAUNCHER, Control::Job(message)) => Some(message.clone()),
            _ => None,
        });
        told.collect::<Vec<_>>()
    };
    table.trunk_away(first, "no sign of life");
    table.trunk_lost(first, "no sign of life");
    assert!(matches!(&told(&table.take_effects())[..], [JobMessage::LeadLost { .. }]));
    table.trunk_up(first);
    table.take_effects();
    // That gateway had closed the job meanwhile, by itself.
    let closed = JobMessage::Closed { job: JOB, site: "a".into(), traffic: Traffic::default(), led: true };
    from_trunk(&mut table, first, closed).unwrap();
    let effects = table.take_effects();
    assert!(
        !told(&effects).iter().any(|message| matches!(message, JobMessage::Closed { led: true, .. })),
        "{effects:?}"
    );
    // Or it reports that it has left the job, and is asked to relay.
    from_trunk(&mut table, first, JobMessage::left(JOB)).unwrap();
    let effects = table.take_effects();
    let relays = |effect: &Effect<u32>| match effect {
        Effect::ToTrunk(trunk, Control::Job(JobMessage::Open { part, .. })) => *trunk == first && !part.leads(),
        _ => false,
    };
    assert!(effects.iter().any(relays), "{effects:?}");
    assert!(!table.jobs[&JOB].closing);
}

/// No agent watches the ranks of a coupling, and the gateway that leads it may be lost too.
#[test]
fn a_rank_of_a_coupling_that_a_relay_has_lost_is_reported() {
    for (part, reported) in [(RELAYS, false), (Part::RelayWithoutAgents { window: 1 << 20 }, true)] {
        let (mut table, first, _) = second();
        table.siblings = true;
        let roster = "a:n1*2;b:n1*2".parse().unwrap();
        let open = JobMessage::Open { job: JOB, secret: secret(), roster, home: "a".into(), part };
        from_trunk(&mut table, first, open).unwrap();
        table.join(JOB, rank(1, 2), 2).unwrap();
        table.take_effects();
        table.leave(JOB, rank(1, 2).slot, &2, Leave::Silent("no sign of life".into()));
        let report = JobMessage::MemberLost { job: JOB, member: rank(1, 2), reason: "no sign of life".into() };
        assert_eq!(table.take_effects().contains(&Effect::ToTrunk(first, report.into())), reported);
    }
}

#[test]
fn an_agent_that_only_a_relay_has_lost_is_reported_too() {
    let (mut table, first, _) = second();
    let open = JobMessage::Open {
        job: JOB,
        secret: secret(),
        roster: "a:n1*2;b:n1*2".parse().unwrap(),
        home: "a".into(),
        part: RELAYS,
    };
    from_trunk(&mut table, first, open).unwrap();
    let agent = Identity { site: SiteId(1), slot: Slot::agent(NodeId(0)).unwrap() };
    table.join(JOB, agent, 5).unwrap();
    table.take_effects();
    table.leave(JOB, agent.slot, &5, Leave::Silent("no sign of life".into()));
    let lost = JobMessage::MemberLost { job: JOB, member: agent, reason: "no sign of life".into() };
    assert_eq!(table.take_effects(), [Effect::ToTrunk(first, lost.into())]);
}

#[test]
fn a_gateway_that_does_not_reach_a_node_drops_its_ranks_and_is_the_last_choice() {
    // At this end: this gateway does not reach the node.
    let (mut table, first, second) = second();
    table.siblings = true;
    let roster: Roster = "a:n1*2;b:n1*2,n2*1".parse().unwrap();
    table.nodes.push("n2".into());
    let open = JobMessage::Open { job: JOB, secret: secret(), roster, home: "a".into(), part: RELAYS };
    [first, second].into_iter().for_each(|trunk| from_trunk(&mut table, trunk, open.clone()).unwrap());
    let agent = Identity { site: SiteId(1), slot: Slot::agent(NodeId(0)).unwrap() };
    let members = [(agent, 1), (rank(1, 2), 2), (rank(1, 3), 3), (rank(1, 4), 4)];
    members.into_iter().for_each(|(who, member)| table.join(JOB, who, member).unwrap());
    table.take_effects();
    table.leave(JOB, agent.slot, &1, Leave::Silent("no sign of life".into()));
    let effects = table.take_effects();
    for member in [2, 3] {
        assert!(effects.iter().any(|effect| matches!(effect, Effect::Dismiss(of, _) if *of == member)), "{effects:?}");
        assert!(matches!(
            table.route(Origin::Trunk(first), &frame(rank(0, 0), rank(1, member))),
            Route::Nowhere { notice: Some(_) }
        ));
    }
    assert!(matches!(table.route(Origin::Trunk(first), &frame(rank(0, 0), rank(1, 4))), Route::Member(4)));
    let here = |whole| JobMessage::Here { job: JOB, whole };
    for trunk in [first, second] {
        assert!(effects.contains(&Effect::ToTrunk(trunk, Control::Job(here(false)))), "{effects:?}");
    }
    for (rank, member) in [(rank(1, 2), 5), (rank(1, 3), 6)] {
        table.join(JOB, rank, member).unwrap();
    }
    assert!(
        table.take_effects().contains(&Effect::ToTrunk(first, Control::Job(here(true)))),
        "they have dialled again"
    );

    // At the other end: frames sent over the partner's trunk may be lost, and the other trunk is used from now on.
    let there = frame(rank(1, 2), rank(0, 0));
    [first, second].into_iter().for_each(|trunk| from_trunk(&mut table, trunk, here(true)).unwrap());
    assert!(matches!(table.route(Origin::Member, &there), Route::Trunk(trunk) if trunk == second));
    from_trunk(&mut table, second, here(false)).unwrap();
    assert!(table.take_effects().contains(&Effect::Passage(5, SiteId(0), Passage::Broken)));
    assert!(matches!(table.route(Origin::Member, &there), Route::Trunk(trunk) if trunk == first));
    // A request for the job by another gateway of the site proves nothing about the ranks there.
    from_trunk(&mut table, first, open).unwrap();
    assert!(matches!(table.route(Origin::Member, &there), Route::Trunk(trunk) if trunk == first));
    from_trunk(&mut table, second, here(true)).unwrap();
    assert!(matches!(table.route(Origin::Member, &there), Route::Trunk(trunk) if trunk == second));
}
