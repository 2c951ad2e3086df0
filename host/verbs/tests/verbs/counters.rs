//! Counters, and which processes can see them: this one, and any other of the same user.

use crate::agent::Agent;
use crate::alone::{alone, is_alone, over_udp};
use crate::pair::{Pair, Setup, eventually, remote};
use adverb_verbs::{
    Context, CqConfig, DeviceReport, QpCounters, QpState, Qpn, WcStatus, Work, diag_counters,
    hw_counters, survey,
};

fn reports() -> Vec<DeviceReport> {
    survey().expect("the registry can be read")
}

fn report_of(pid: u32) -> Option<DeviceReport> {
    reports().into_iter().find(|report| report.pid == pid)
}

/// What a process shows when it is asked now. A busy machine may let it answer too late for one look.
fn fresh_report_of(pid: u32) -> DeviceReport {
    let mut found = None;
    eventually("it answers", || {
        found = report_of(pid).filter(|report| report.fresh);
        found.is_some()
    });
    found.expect("it has answered")
}

/// No thread of a process runs any more, for it was told to stop.
fn is_stopped(pid: u32) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("it lives");
    tasks.map(|task| task.expect("a thread").path().join("stat")).all(|stat| {
        let text = std::fs::read_to_string(stat).unwrap_or_default();
        text.rsplit(')').next().is_some_and(|rest| rest.starts_with(" T"))
    })
}

fn counters_of(report: &DeviceReport, number: Qpn) -> QpCounters {
    let row = report.qps.iter().find(|row| row.number == number).expect("it has a row");
    row.counters
}

#[test]
fn a_queue_pairs_counts_stay_with_the_device_when_it_goes() {
    alone("counters::a_queue_pairs_counts_stay_with_the_device_when_it_goes", || {
        let Pair { a, b, context, .. } = Setup::default().pair();
        let target = b.region(&[0; 8]);
        for _ in 0..5 {
            a.qp.post(Work::write(a.buffer(&[1; 8]), remote(&target))).expect("room");
            assert_eq!(a.status(), WcStatus::Success);
        }
        a.qp.post(Work::recv(a.buffer(&[0; 8]))).expect("room");
        a.qp.to_err();
        assert_eq!(a.status(), WcStatus::WorkRequestFlushed);
        let before = context.qp_counters();
        assert_eq!((before.rdma_sends, before.rq_num_wrfe), (5, 1));
        let number = a.qp.number();
        let own = fresh_report_of(std::process::id());
        assert_eq!(counters_of(&own, number).rdma_sends, 5);
        let states: Vec<_> = own.qps.iter().map(|row| row.state).collect();
        assert!(states.contains(&QpState::Err) && states.contains(&QpState::Rts), "{states:?}");
        drop(a);
        assert_eq!(context.qp_counters().rdma_sends, before.rdma_sends);
        let own = fresh_report_of(std::process::id());
        assert_eq!((own.qps.len(), own.total.rdma_sends), (1, before.rdma_sends));
    });
}

#[test]
fn overflows_are_counted_under_the_names_of_the_hardware() {
    alone("counters::overflows_are_counted_under_the_names_of_the_hardware", || {
        let context = Context::open("soft_lo").expect("the loopback device");
        let side = Setup { cqe: 1, ..Setup::default() }.side(&context);
        let peer = Setup::default().side(&context);
        let how = Setup::default().attributes(&peer.qp);
        side.qp.connect(how).expect("connected");
        for _ in 0..3 {
            side.qp.post(Work::recv(side.buffer(&[0; 8]))).expect("room");
        }
        side.qp.to_err();
        let (port, qps) = (context.counters(), context.qp_counters());
        let value = |list: Vec<(&str, u64)>, name: &str| {
            list.into_iter().find(|(known, _)| *known == name).map(|(_, value)| value)
        };
        assert_eq!(value(diag_counters(&port, &qps), "num_cqovf"), Some(1));
        assert_eq!(value(diag_counters(&port, &qps), "rq_num_wrfe"), Some(3));
        assert_eq!(value(hw_counters(&port, &qps), "link_downed"), Some(0));
    });
}

/// Goal: each process is seen with its queue pairs while it lives, and not after that; one that is
/// stopped is seen as it was.
#[test]
fn processes_see_one_anothers_counters_while_they_live() {
    over_udp("counters::processes_see_one_anothers_counters_while_they_live", || {
        let setup = Setup::default();
        let context = Context::open("soft_lo").expect("the loopback device");
        let side = setup.side(&context);
        let mut agent = Agent::start("soft_lo", 1);
        let there = agent.connect_to(&side.qp, &setup);
        let far = agent.memory();
        for _ in 0..7 {
            side.qp.post(Work::write(side.buffer(&[1; 8]), far)).expect("room");
            assert_eq!(side.status(), WcStatus::Success);
        }
        let theirs = fresh_report_of(agent.pid());
        assert_eq!(theirs.device, "soft_lo");
        let row = theirs.qps.iter().find(|row| row.number == there.qp.qpn).expect("its row");
        assert_eq!((row.peer, row.state), (Some(side.qp.number()), QpState::Rts));
        assert!(row.counters.rcvd_pkts >= 7, "{row:?}");
        assert!(theirs.port.rcvd_pkts >= 7);
        if is_alone() {
            assert_eq!(reports().len(), 2);
        }

        agent.signal("-STOP");
        eventually("it stops", || is_stopped(agent.pid()));
        let stopped = report_of(agent.pid()).expect("it is still there");
        assert!(!stopped.fresh);
        assert_eq!(stopped.qps, theirs.qps);
        agent.signal("-CONT");
        let _ = fresh_report_of(agent.pid());
        let pid = agent.pid();
        agent.kill();
        assert!(report_of(pid).is_none(), "no device is left to count");
    });
}

/// Goal: a process that sleeps, in whatever way, is woken to answer, and sleeps again.
#[test]
fn a_process_that_sleeps_answers_too() {
    alone("counters::a_process_that_sleeps_answers_too", || {
        let context = Context::open("soft_lo").expect("the loopback device");
        let channel = context.create_comp_channel().expect("a channel");
        let config = CqConfig::new(16).channel(&channel);
        let cq = context.create_cq_with(&config).expect("a completion queue");
        let setup = Setup::default();
        let (pd, peer) = (context.alloc_pd(), setup.side(&context));
        let qp = setup.qp(&pd, &cq);
        qp.connect(setup.attributes(&peer.qp)).expect("connected");
        peer.qp.connect(setup.attributes(&qp)).expect("connected");
        qp.post(Work::recv(pd.buffer(8).expect("memory"))).expect("room");
        cq.req_notify(false).expect("it has a channel");
        std::thread::scope(|scope| {
            let sleeper = scope.spawn(|| channel.get_event().map(drop));
            // Long enough that the helper leaves the sockets to the sleeper.
            std::thread::sleep(std::time::Duration::from_millis(50));
            for _ in 0..3 {
                let _ = fresh_report_of(std::process::id()); // Never, if it is not woken.
            }
            assert!(!sleeper.is_finished());
            peer.qp.post(Work::send(peer.buffer(&[1; 8]))).expect("room");
            sleeper.join().expect("no panic").expect("an event");
        });
    });
}
