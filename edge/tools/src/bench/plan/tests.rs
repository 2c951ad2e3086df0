//! From words on a command line to jobs, floors and queue depths.

use clap::Parser;

use super::*;

fn plan(words: &[&str]) -> Result<Plan, Failure> {
    Plan::new(&BenchArgs::try_parse_from(["bench"].iter().chain(words)).unwrap())
}

impl Plan {
    /// Neighbours have all jobs.
    fn all(&self) -> Vec<Job> {
        self.jobs_on(Path::Shm)
    }
}

/// What is asked for decides between the main figures and tables.
#[test]
fn without_a_choice_a_run_is_a_dozen_figures() {
    for words in [&[][..], &["--quick"], &["-n", "7"], &["--report_gbits"], &["-m", "1024"]] {
        let plan = plan(words).unwrap();
        assert!(plan.is_summary(), "{words:?}");
        let figures = [Path::Udp, Path::Shm].map(|path| plan.jobs_on(path).len());
        assert_eq!(figures, [6, 9]);
    }
    for words in
        [&["--tables"][..], &["--json"], &["-s", "64"], &["--op", "read"], &["-a"], &["-l", "2"]]
    {
        assert!(!plan(words).unwrap().is_summary(), "{words:?}");
    }
}

#[test]
fn what_follows_counts_by_its_time() {
    let plan = plan(&["--op", "read", "--test", "latency", "-s", "8,16", "--json"]).unwrap();
    assert_eq!(plan.steps_on(Path::Udp), (6, 0));
    let first = plan.before_neighbours();
    assert_eq!(first.steps_on(Path::Udp), (6, 4), "10 jobs of 10 ms are as long as 4 of 25 ms");
    assert_eq!(first.of_neighbours().steps_on(Path::Shm), (10, 0));
}

fn quantities(plan: &Plan, op: Op) -> Vec<Quantity> {
    let mut quantities: Vec<_> =
        plan.all().iter().filter(|job| job.op == op).map(|job| job.quantity).collect();
    quantities.dedup();
    quantities
}

#[test]
fn a_run_without_options_covers_one_byte_to_eight_mebibytes() {
    let powers: Vec<u64> = (0..=23).map(|exponent| 1 << exponent).collect();
    let all_sizes = plan(&["--all"]).unwrap();
    let plan = plan(&["--tables"]).unwrap();
    let sizes_of = |plan: &Plan, quantity| {
        let of = move |j: &&Job| {
            j.op == Op::Write && j.quantity == quantity && j.memory == Memory::Library
        };
        let all = plan.all();
        let jobs = all.iter().filter(of);
        jobs.map(|job| job.bytes).collect::<Vec<_>>()
    };
    assert_eq!(sizes_of(&all_sizes, Quantity::Completion), powers);
    let sizes = |quantity| sizes_of(&plan, quantity);
    let usual = sizes(Quantity::Completion);
    assert_eq!(
        (usual.first(), usual.last(), usual.len()),
        (Some(&1), Some(&(8 << 20)), powers.len())
    );
    let odd: Vec<u64> = usual.iter().copied().filter(|bytes| !bytes.is_power_of_two()).collect();
    assert_eq!(odd, [1500, 6144, 100_000]);
    assert!(usual.is_sorted());
    assert_eq!(sizes(Quantity::HalfRoundTrip), usual);
    assert_eq!(sizes(Quantity::Bandwidth(Buffers::RoundRobin)), usual);
    assert_eq!(sizes(Quantity::Bandwidth(Buffers::One)), usual);
    for list in [1, 32] {
        assert_eq!(sizes(Quantity::Rate { list }), [64]);
    }
}

#[test]
fn a_quick_run_keeps_the_sizes_that_people_ask_for_and_plans_twelve_seconds() {
    let plan = plan(&["--quick", "--json"]).unwrap();
    for bytes in [1, 64, 1500, 4096, 1 << 20, 8 << 20] {
        assert!(plan.all().iter().any(|job| job.bytes == bytes), "{bytes}");
    }
    let jobs = plan.jobs_on(Path::Udp);
    let floors: Vec<_> = jobs.iter().filter_map(|job| plan.floor(*job, Path::Udp, 4096)).collect();
    let streams = floors.iter().filter(|spec| spec.is_stream()).count();
    let others: std::collections::BTreeSet<_> =
        floors.iter().filter(|spec| !spec.is_stream()).collect();
    let tests = u32::try_from(jobs.len() + streams + others.len()).unwrap();
    let each = plan.limit.duration.unwrap() + plan.limit.warm_up().duration.unwrap();
    assert!(each * tests * plan.rounds < Duration::from_secs(12), "{tests} tests");

    let plan = plan.of_neighbours();
    // Each with its floor, and some with more.
    let tests = 2 * u32::try_from(plan.jobs_on(Path::Shm).len()).unwrap();
    let each = plan.limit.duration.unwrap() + plan.limit.warm_up().duration.unwrap();
    assert!(each * tests * plan.rounds < Duration::from_secs(8), "{tests} tests of neighbours");
}

#[test]
fn neighbours_alone_are_measured_in_memory_of_the_callers_and_more_often() {
    let plan = plan(&["-a"]).unwrap();
    let caller = |path| {
        let jobs = plan.jobs_on(path).into_iter().filter(|job| job.memory == Memory::Caller);
        jobs.map(|job| (job.op, job.bytes)).collect::<Vec<_>>()
    };
    assert!(caller(Path::Udp).is_empty() && caller(Path::Hw).is_empty());
    assert_eq!(caller(Path::Shm).len(), 3 * 8, "64 KiB to 8 MiB");
    assert_eq!((plan.rounds, plan.of_neighbours().rounds), (3, 5));
    let asked =
        Plan::new(&BenchArgs::try_parse_from(["bench", "-s", "64", "--rounds", "2"]).unwrap());
    let asked = asked.unwrap().of_neighbours();
    assert_eq!(asked.rounds, 2);
    assert!(asked.all().iter().any(|job| job.memory == Memory::Caller && job.bytes == 64));
}

#[test]
fn operations_and_tests_can_be_chosen() {
    let plan = plan(&["--op", "read", "--test", "latency,rate", "-s", "8,16"]).unwrap();
    let rates = [1, 32].map(|list| Quantity::Rate { list });
    assert_eq!(
        quantities(&plan, Op::Read),
        [&[Quantity::Completion][..], &rates[..1], &rates[1..]].concat()
    );
    assert!(quantities(&plan, Op::Send).is_empty());
    assert_eq!(plan.all().len(), 6);
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
        for job in plan.all() {
            let Stream { depth, list, signal_every, .. } = plan.stream(job);
            assert!(signal_every >= 1 && signal_every <= depth - list + 1, "{words:?} {job}");
        }
    }
    for words in [&["-l", "100"][..], &["-Q", "128"], &["--tables"]] {
        let plan = plan(words).unwrap();
        for job in plan.all() {
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
    let job = |op, bytes, quantity| Job { op, bytes, quantity, memory: Memory::Library };
    let rate = |list| Quantity::Rate { list };
    let half = Quantity::HalfRoundTrip;
    let stream = Quantity::Bandwidth(Buffers::One);
    let exchange = |bytes, reply_bytes| Exchange { bytes, reply_bytes };
    let packets = |packet_bytes, memory_bytes| FloorSpec::UdpStream { packet_bytes, memory_bytes };
    for (job, floor) in [
        (job(Op::Send, 64, half), FloorSpec::UdpPingpong(exchange(64, 64))),
        (job(Op::Write, 1024, half), FloorSpec::UdpPingpong(exchange(1024, 1024))),
        (job(Op::Write, 1025, half), FloorSpec::TcpPingpong(exchange(1025, 1025))),
        (job(Op::Send, 64, Quantity::Completion), FloorSpec::UdpPingpong(exchange(64, 20))),
        (job(Op::Read, 64, Quantity::Completion), FloorSpec::UdpPingpong(exchange(32, 64))),
        (job(Op::Read, 1, stream), packets(36, 0)),
        (job(Op::Read, 1 << 20, stream), packets(1056, 0)),
        (job(Op::Read, 1 << 23, stream), packets(1056, 1 << 23)),
        (job(Op::Send, 64, rate(1)), packets(96, 0)),
    ] {
        assert_eq!(job.floor(1024, 1), floor, "{job}");
    }
    let turns = Quantity::Bandwidth(Buffers::RoundRobin);
    let usual = plan(&[]).unwrap();
    for (job, floor) in [
        (job(Op::Send, 64, half), FloorSpec::ShmPingpong { bytes: 64 }),
        (job(Op::Read, 4096, Quantity::Completion), FloorSpec::ShmPingpong { bytes: 4096 }),
        (job(Op::Write, 1 << 20, stream), FloorSpec::Memcpy { bytes: 1 << 20, places: 1 }),
        (job(Op::Write, 1 << 20, turns), FloorSpec::Memcpy { bytes: 1 << 20, places: 32 }),
        (job(Op::Send, 64, rate(32)), FloorSpec::Ring { list: 32 }),
        (job(Op::Send, 65, rate(1)), FloorSpec::Memcpy { bytes: 65, places: 1 }),
    ] {
        assert_eq!(usual.floor(job, Path::Shm, 1024), Some(floor), "{job}");
    }
    for (job, floor) in [
        (job(Op::Send, 1024, turns), packets(1056, 0)),
        (job(Op::Write, 1 << 20, turns), packets(1056, 32 << 20)),
    ] {
        assert_eq!(usual.floor(job, Path::Udp, 1024), Some(floor), "{job}");
    }
    let without = plan(&["--no-floor"]).unwrap();
    for path in [Path::Udp, Path::Shm] {
        assert_eq!(without.floor(job(Op::Send, 64, half), path, 1024), None);
    }
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
