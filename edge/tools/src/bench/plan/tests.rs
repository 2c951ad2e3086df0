//! From words on a command line to jobs, floors and queue depths.

use clap::Parser;

use super::*;

fn plan(words: &[&str]) -> Result<Plan, Failure> {
    Plan::new(&BenchArgs::try_parse_from(["bench"].iter().chain(words)).unwrap())
}

fn quantities(plan: &Plan, op: Op) -> Vec<Quantity> {
    let mut quantities: Vec<_> =
        plan.jobs.iter().filter(|job| job.op == op).map(|job| job.quantity).collect();
    quantities.dedup();
    quantities
}

#[test]
fn a_run_without_options_covers_one_byte_to_eight_mebibytes() {
    let plan = plan(&[]).unwrap();
    let sizes = |quantity| {
        let jobs = plan.jobs.iter().filter(move |j| j.op == Op::Write && j.quantity == quantity);
        jobs.map(|job| job.bytes).collect::<Vec<_>>()
    };
    let powers: Vec<u64> = (0..=23).map(|exponent| 1 << exponent).collect();
    assert_eq!(sizes(Quantity::Completion), powers);
    assert_eq!(sizes(Quantity::HalfRoundTrip), powers);
    assert_eq!(sizes(Quantity::Bandwidth(Buffers::RoundRobin)), powers);
    assert_eq!(sizes(Quantity::Bandwidth(Buffers::One)), powers);
    assert_eq!(sizes(Quantity::Rate), [64]);
}

#[test]
fn a_quick_run_keeps_the_sizes_that_people_ask_for_and_plans_twelve_seconds() {
    let plan = plan(&["--quick"]).unwrap();
    for bytes in [1, 64, 4096, 1 << 20, 8 << 20] {
        assert!(plan.jobs.iter().any(|job| job.bytes == bytes), "{bytes}");
    }
    let floors: Vec<_> = plan.jobs.iter().filter_map(|job| plan.floor(*job, 4096)).collect();
    let streams = floors.iter().filter(|spec| spec.is_stream()).count();
    let others: std::collections::BTreeSet<_> =
        floors.iter().filter(|spec| !spec.is_stream()).collect();
    let tests = u32::try_from(plan.jobs.len() + streams + others.len()).unwrap();
    let each = plan.limit.duration.unwrap() + plan.limit.warm_up().duration.unwrap();
    assert!(each * tests * plan.rounds < Duration::from_secs(12), "{tests} tests");
}

#[test]
fn operations_and_tests_can_be_chosen() {
    let plan = plan(&["--op", "read", "--test", "latency,rate", "-s", "8,16"]).unwrap();
    assert_eq!(quantities(&plan, Op::Read), [Quantity::Completion, Quantity::Rate]);
    assert!(quantities(&plan, Op::Send).is_empty());
    assert_eq!(plan.jobs.len(), 4);
}

#[test]
fn iterations_or_seconds_replace_the_default_time() {
    let iters = plan(&["-n", "7"]).unwrap();
    assert_eq!(iters.limit, Limit { iters: Some(7), duration: None });
    let seconds = plan(&["-D", "1.5", "--rounds", "2"]).unwrap();
    assert_eq!(seconds.limit, Limit::time(Duration::from_millis(1500)));
    assert_eq!((iters.rounds, seconds.rounds), (1, 2));
}

/// A stream waits for a completion when its queue is full: there has to be one in flight.
#[test]
fn a_full_queue_always_holds_a_signaled_request() {
    let all = ["-t", "-l", "-Q"];
    for values in [["1", "1", "1"], ["2", "2", "1"], ["128", "16", "113"], ["16384", "1", "16384"]]
    {
        let words: Vec<_> =
            all.iter().zip(values).flat_map(|(&flag, value)| [flag, value]).collect();
        let plan = plan(&words).unwrap();
        for &job in &plan.jobs {
            let Stream { depth, list, signal_every, .. } = plan.stream(job);
            assert!(signal_every >= 1 && signal_every <= depth - list + 1, "{words:?} {job}");
        }
    }
    for words in [&["-l", "100"][..], &["-Q", "128"], &[]] {
        let plan = plan(words).unwrap();
        for &job in &plan.jobs {
            let Stream { depth, list, signal_every, .. } = plan.stream(job);
            assert!(signal_every >= 1 && signal_every <= depth - list + 1, "{words:?} {job}");
            assert!(depth <= plan.tuning.tx_depth, "{words:?} {job}");
        }
    }
}

#[test]
fn queue_options_that_contradict_each_other_are_refused_with_the_range_that_is_allowed() {
    for (words, hint) in [
        (&["-t", "4", "-l", "5"][..], "1 to 4"),
        (&["-l", "129"], "1 to 128"),
        (&["-t", "4", "-l", "3", "-Q", "4"], "1 to 2"),
        (&["-Q", "200"], "1 to 128"),
    ] {
        match plan(words) {
            Err(Failure::Usage(why)) => assert!(why.contains(hint), "{words:?}: {why}"),
            other => panic!("{words:?}: {other:?}"),
        }
    }
}

#[test]
fn each_job_stands_on_the_floor_that_does_the_same() {
    let job = |op, bytes, quantity| Job { op, bytes, quantity };
    let half = Quantity::HalfRoundTrip;
    let stream = Quantity::Bandwidth(Buffers::One);
    let exchange = |bytes, reply_bytes| Exchange { bytes, reply_bytes };
    for (job, floor) in [
        (job(Op::Send, 64, half), FloorSpec::UdpPingpong(exchange(64, 64))),
        (job(Op::Write, 1024, half), FloorSpec::UdpPingpong(exchange(1024, 1024))),
        (job(Op::Write, 1025, half), FloorSpec::TcpPingpong(exchange(1025, 1025))),
        (job(Op::Send, 64, Quantity::Completion), FloorSpec::UdpPingpong(exchange(64, 20))),
        (job(Op::Read, 64, Quantity::Completion), FloorSpec::UdpPingpong(exchange(32, 64))),
        (job(Op::Read, 1, stream), FloorSpec::UdpStream { packet_bytes: 36 }),
        (job(Op::Read, 1 << 23, stream), FloorSpec::UdpStream { packet_bytes: 1056 }),
        (job(Op::Send, 64, Quantity::Rate), FloorSpec::UdpStream { packet_bytes: 96 }),
    ] {
        assert_eq!(job.floor(1024), floor, "{job}");
    }
    assert_eq!(plan(&["--no-floor"]).unwrap().floor(job(Op::Send, 64, half), 1024), None);
}

#[test]
fn a_tuning_from_the_network_is_checked_before_memory_is_taken() {
    let good = plan(&[]).unwrap().tuning;
    assert!(good.is_legal());
    assert!(plan(&["-s", "1024M", "-I", "1024"]).unwrap().tuning.is_legal());
    let layout = |half_bytes, message_bytes_max, receives| Tuning {
        layout: Layout { half_bytes, message_bytes_max, receives },
        ..good.clone()
    };
    for bad in [
        Tuning { mtu: 1500, ..good.clone() },
        Tuning { tx_depth: 0, ..good.clone() },
        Tuning { inline_bytes: 1 << 20, ..good.clone() },
        layout(usize::MAX, 1, 1),
        layout(64, 65, 1),
        layout(64, 0, 1),
        layout(64, 64, u32::MAX),
    ] {
        assert!(!bad.is_legal(), "{bad:?}");
    }
}
