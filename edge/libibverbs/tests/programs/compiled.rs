//! Programs of C that the tests compile themselves.

use super::support::{self, Hosts, PATHS, Place};
use adverb_verbs::{Access, Context, Psn, QpConfig, Qpn, RemoteQp, Work};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// A program that was compiled from a file beside this one; it is gone afterwards.
pub(crate) struct Compiled(PathBuf);

impl Compiled {
    /// `None`, after it has said why, if this cannot be had here.
    pub(crate) fn new(name: &str, flags: &[&str]) -> Option<Self> {
        Self::by("cc", name, flags)
    }

    /// The same with another compiler.
    pub(crate) fn by(compiler: &str, name: &str, flags: &[&str]) -> Option<Self> {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let id = MADE.fetch_add(1, Ordering::Relaxed);
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs");
        let program = format!("adverb-{name}-{}-{id}", std::process::id());
        let program = std::env::temp_dir().join(program);
        let mut compiler = Command::new(compiler);
        compiler.arg(format!("{source}/{name}.c")).arg("-o").arg(&program).args(flags);
        match compiler.output() {
            Ok(output) if output.status.success() => Some(Self(program)),
            Ok(output) => {
                let why = String::from_utf8_lossy(&output.stderr).into_owned();
                let headers = [
                    "infiniband/verbs.h",
                    "-libverbs",
                    "-lrdmacm",
                    "rdma/",
                    "mpi.h",
                    "ucp/",
                    "-lucp",
                ];
                assert!(headers.iter().any(|missing| why.contains(missing)), "{why}");
                println!("skipped: no header of what the program is on");
                None
            }
            Err(error) => {
                println!("skipped: no C compiler: {error}");
                None
            }
        }
    }
}

impl Compiled {
    pub(crate) fn path(&self) -> &str {
        self.0.to_str().expect("a path of letters")
    }
}

impl Drop for Compiled {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn a_program_that_loads_the_library_by_name_and_version_writes_by_a_device() {
    let Some(program) = Compiled::new("loaded", &["-ldl"]) else {
        return;
    };
    for path in PATHS {
        loads(&program, Place::Here(path));
    }
    if let Some(hosts) = Hosts::new() {
        loads(&program, Place::Apart(&hosts));
    }
}

/// What a program prints that loads the library by name and version.
pub(crate) fn loads(program: &Compiled, place: Place<'_>) -> String {
    let line = format!("{} {}", program.path(), place.device());
    let output = place.command(0, &line).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let has = |wanted| said.lines().any(|line| line == wanted);
    assert!(output.status.success() && has(place.device()) && has("written"), "{output:?}");
    said
}

/// Goal: each function of `files.rs` finds the files of the devices, and none is forgotten here.
#[test]
fn every_function_that_takes_a_path_finds_the_files_of_the_devices() {
    let (program, library) = (include_str!("paths.c"), include_str!("../../src/files.rs"));
    let lists = library.split("\nfunctions! {\n").skip(1);
    let lists = lists.map(|list| list.split_once(":\n").unwrap().1.split_once("\n}").unwrap().0);
    let names: Vec<&str> = lists.flat_map(str::split_whitespace).collect();
    assert!(names.len() > 30, "{names:?}");
    for name in names {
        assert!(program.contains(&format!("CHECK({name}, ")), "{name}");
    }
    let Some(program) = Compiled::new("paths", &["-O2"]) else {
        return;
    };
    let output = Place::Here("shm").command(0, program.path()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

/// Goal: both interfaces mean the same device. Method: a program of C on libibverbs, with the library in front of that and in
/// its place, and this one on the safe API exchange a message each way.
#[test]
fn a_program_of_c_and_one_of_rust_talk_to_each_other() {
    let Some(program) = Compiled::new("peer", &["-libverbs"]) else {
        return;
    };
    let directory = super::drop_in::Directory::new();
    let in_its_place = directory.set();
    for (path, set) in PATHS.into_iter().flat_map(|path| [(path, &[][..]), (path, &in_its_place)]) {
        let mut command = support::command(program.0.to_str().unwrap());
        command.env("ADVERB_PATH", path).env("ADVERB_DEVICES", "soft_lo").envs(set.iter().copied());
        let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let line = lines.next().unwrap().unwrap();
        let (number, psn) = line.split_once(' ').unwrap();

        let context = Context::open("soft_lo").unwrap();
        let (pd, cq) = (context.alloc_pd(), context.create_cq(16).unwrap());
        let qp = pd.create_qp(&QpConfig::new(&cq)).unwrap();
        let own = qp.address().unwrap();
        let answer = pd.allocate(64, Access::LOCAL_WRITE).unwrap();
        let (qpn, psn) = (Qpn::new(number.parse().unwrap()), Psn::new(psn.parse().unwrap()));
        qp.connect(RemoteQp { gid: own.gid, qpn, psn }).unwrap();
        qp.post(Work::recv(answer.slice(0, 64).unwrap())).unwrap();
        let mut input = child.stdin.take().unwrap();
        writeln!(input, "{} {}", own.qpn.get(), own.psn.get()).unwrap();
        assert_eq!(lines.next().unwrap().unwrap(), "ready");
        let mut message = pd.buffer(5).unwrap();
        message.copy_from_slice(b"hello");
        qp.post(Work::send(message)).unwrap();
        for _ in 0..2 {
            cq.wait().unwrap().ok().unwrap();
        }
        let mut bytes = [0; 5];
        answer.read(0, &mut bytes).unwrap();
        assert_eq!(&bytes, b"olleh");
        let output = support::ended(child);
        assert!(output.status.success(), "{path}: {output:?}");
    }
}

/// Goal: a program learns of each of its mistakes by the number that the manual pages name, and nothing is done.
#[test]
fn a_mistake_of_a_program_is_the_error_that_the_manual_names() {
    let Some(program) = Compiled::new("mistakes", &["-libverbs"]) else {
        return;
    };
    for path in PATHS {
        let set = [("ADVERB_PATH", path), ("ADVERB_DEVICES", "soft_lo"), ("ADVERB_EXPLAIN", "0")];
        let mut command = support::command(program.0.to_str().unwrap());
        let output = command.envs(set).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{path}: {}\n{said}", output.status);
    }
    // The same where there is no other libibverbs.
    let directory = super::drop_in::Directory::new();
    let alone = [("ADVERB_IBVERBS", "off"), ("ADVERB_DEVICES", "soft_lo"), ("ADVERB_EXPLAIN", "0")];
    support::alone(program.path(), &[], &[directory.set().as_slice(), &alone].concat());
}

/// Goal: a program that unmaps, cuts short or protects memory that is registered goes on, as on a NIC, which holds the pages; its
/// own faults end it, or reach its handlers, as without the library.
#[test]
fn memory_that_goes_while_it_is_registered_ends_no_program() {
    let Some(program) = Compiled::new("lost", &["-libverbs", "-pthread"]) else {
        return;
    };
    for path in ["shm", "ring", "udp"] {
        let set = [("ADVERB_PATH", path), ("ADVERB_DEVICES", "soft_lo")];
        support::alone(program.path(), &[], &set);
    }
}

/// Goal: what few programs do is as the manual pages have it: messages without bytes, all pieces that there can be, events of
/// each kind, changes to what is in use.
#[test]
fn what_few_programs_ask_for_is_as_the_manual_has_it() {
    let Some(program) = Compiled::new("asks", &["-libverbs"]) else {
        return;
    };
    for path in PATHS {
        let set = [("ADVERB_PATH", path), ("ADVERB_DEVICES", "soft_lo"), ("ADVERB_EXPLAIN", "0")];
        support::alone(program.path(), &[], &set);
    }
}

/// Goal: a poll that has let other threads run answers with what came meanwhile: a program that looks for the end of its
/// connection next, and destroys the queue pair, would lose it. Method: the program's own `sched_yield` sends it.
#[test]
fn a_poll_that_lets_others_run_finds_what_came_meanwhile() {
    let Some(program) = Compiled::new("yields", &["-rdynamic", "-libverbs"]) else {
        return;
    };
    for path in PATHS {
        let set = [("ADVERB_PATH", path), ("ADVERB_DEVICES", "soft_lo"), ("ADVERB_EXPLAIN", "0")];
        support::alone(program.path(), &[], &set);
    }
}

/// Goal: a signal ends a wait for an event as it ends `read`, also if it comes while the library looks for something to do. One
/// that comes before the call has begun does not: that has to be rare.
#[test]
fn signals_end_waits_for_events_unless_their_handlers_ask_for_a_restart() {
    let Some(program) = Compiled::new("signals", &["-libverbs", "-lpthread"]) else {
        return;
    };
    let set = [("ADVERB_DEVICES", "soft_lo"), ("ADVERB_EXPLAIN", "0")];
    let said = support::alone(program.path(), &[], &set);
    let missed = said.split_once(" of ").and_then(|(missed, _)| missed.parse::<u32>().ok());
    assert!(missed.is_some_and(|missed| missed < 60), "{said}");
}

/// Goal: threads are cancelled where they wait, a program outlives that they are cancelled anywhere else, and signals that its
/// own threads hold back do not end it.
#[test]
fn threads_are_cancelled_where_they_wait_and_take_signals_alone() {
    let Some(program) = Compiled::new("cancelled", &["-lrdmacm", "-libverbs", "-lpthread"]) else {
        return;
    };
    for path in PATHS {
        let set = [("ADVERB_DEVICES", "soft_lo"), ("ADVERB_EXPLAIN", "0"), ("ADVERB_PATH", path)];
        support::alone(program.path(), &[], &set);
    }
}

/// Goal: functions of later releases that mean something on a software device do what they are for.
#[test]
fn buffers_and_registration_by_attributes_of_later_releases_work() {
    let Some(program) = Compiled::new("later", &["-libverbs", "-ldl"]) else {
        return;
    };
    let set = [("ADVERB_DEVICES", "soft_lo"), ("ADVERB_EXPLAIN", "0")];
    support::alone(program.path(), &[], &set);
}

/// Goal: what programs print and compare, names of numbers and rates, is that of the system's library.
#[test]
fn names_and_rates_are_those_of_the_library_behind() {
    if let Some(program) = Compiled::new("words", &["-libverbs", "-ldl"]) {
        support::alone(program.path(), &[], &[]);
    }
}

/// Goal: FLUSH and ATOMIC WRITE do what they are for by both interfaces; a region that ought to outlive a loss of power, and each
/// mistake, is refused.
#[test]
fn what_is_written_is_flushed_and_placed_at_once() {
    let Some(program) = Compiled::new("placed", &["-libverbs"]) else {
        return;
    };
    for path in PATHS {
        let set = [("ADVERB_PATH", path), ("ADVERB_DEVICES", "soft_lo"), ("ADVERB_EXPLAIN", "0")];
        support::alone(program.path(), &[], &set);
    }
}

/// Goal: libraries that write hooks over the code of `madvise(2)` right after they have closed a device, as Open MPI does,
/// meet no thread of the device in it.
#[test]
fn a_closed_device_leaves_no_threads_behind() {
    let Some(program) = Compiled::new("closes", &["-libverbs"]) else {
        return;
    };
    for path in PATHS {
        let set = [("ADVERB_PATH", path), ("ADVERB_DEVICES", "soft_lo"), ("ADVERB_EXPLAIN", "0")];
        // Each is a newcomer to the others, again and again.
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| support::alone(program.path(), &[], &set));
            }
        });
    }
}

/// Goal: handles of one XRC target are of the same queue pair, which lives as long as one of them.
#[test]
fn a_target_that_is_opened_again_lives_as_long_as_one_of_its_handles() {
    let Some(program) = Compiled::new("opened", &["-libverbs"]) else {
        return;
    };
    for path in PATHS {
        let set = [("ADVERB_PATH", path), ("ADVERB_DEVICES", "soft_lo"), ("ADVERB_EXPLAIN", "0")];
        support::alone(program.path(), &[], &set);
    }
}

/// Goal: a target that processes open by its number is one for all of them, and ends with the last; processes that are
/// killed let go of theirs. Method: three processes and a sender, which say when they are ready.
#[test]
fn a_target_that_other_processes_open_lives_as_long_as_one_of_them_has_it() {
    let Some(program) = Compiled::new("shares", &["-libverbs"]) else {
        return;
    };
    for path in PATHS {
        let set = [("ADVERB_PATH", path), ("ADVERB_DEVICES", "soft_lo"), ("ADVERB_EXPLAIN", "0")];
        support::alone(program.path(), &[], &set);
    }
}

/// Goal: children made by `fork` have devices and connections of their own, whatever their parent has open and closes,
/// and what one of them says last arrives although it has ended.
#[test]
fn children_that_are_forked_meet_by_the_connection_manager() {
    let Some(program) = Compiled::new("forks", &["-lrdmacm", "-libverbs"]) else {
        return;
    };
    for path in PATHS {
        let set = [("ADVERB_PATH", path), ("ADVERB_DEVICES", "soft_lo")];
        support::alone(program.path(), &[], &set);
    }
}

/// Goal: a connection is established by what its server learns of it elsewhere, once, and the client's word comes late.
#[test]
fn a_server_that_is_notified_of_packets_is_connected() {
    let Some(program) = Compiled::new("notified", &["-lrdmacm", "-libverbs"]) else {
        return;
    };
    for path in PATHS {
        let set = [("ADVERB_PATH", path), ("ADVERB_DEVICES", "soft_lo"), ("ADVERB_EXPLAIN", "0")];
        support::alone(program.path(), &[], &set);
    }
}

/// Goal: a forked child cannot disturb its parent by the parent's objects, and has a device of its own.
#[test]
fn what_a_forked_child_does_with_objects_of_its_parent_is_refused() {
    let Some(program) = Compiled::new("inherited", &["-libverbs"]) else {
        return;
    };
    for path in PATHS {
        let set = [("ADVERB_PATH", path), ("ADVERB_DEVICES", "soft_lo"), ("ADVERB_EXPLAIN", "0")];
        support::alone(program.path(), &[], &set);
    }
}

/// Goal: what Python's interface to libibverbs does, works. Method: queue pairs of three types, connected to themselves:
/// SEND with events, shared receives, WRITE, READ, atomics, a window, a parent domain.
#[test]
fn a_program_of_python_runs_on_the_library() {
    if !has_pyverbs() {
        return;
    }
    PATHS.map(Place::Here).into_iter().for_each(|place| drop(traffic(place)));
}

/// Goal: so does what Python offers of the extended interfaces, and what a device without vendor features refuses is refused by the
/// numbers of such a device.
#[test]
fn a_program_of_python_builds_requests_and_reads_completions() {
    if !has_pyverbs() {
        return;
    }
    PATHS.map(Place::Here).into_iter().for_each(|place| drop(single("builders.py", place)));
}

/// What `traffic.py` prints.
pub(crate) fn traffic(place: Place<'_>) -> String {
    single("traffic.py", place)
}

/// What a script prints that is both ends.
fn single(script: &str, place: Place<'_>) -> String {
    let line = format!("{PYTHON} {SCRIPTS}/{script} {} 1", place.device());
    let output = place.command(0, &line).output().unwrap();
    assert!(output.status.success(), "{}: {output:?}", place.name());
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Goal: two programs of Python reach each other, on one host and in two network namespaces: SEND each way over RC, UC and
/// UD, with events; WRITE, READ, atomics.
#[test]
fn two_programs_of_python_talk_to_each_other() {
    if !has_pyverbs() {
        return;
    }
    at_all_places(|place| drop(two_of_python(&format!("apart.py {} 1", place.device()), place)));
}

/// What the client of a program of Python prints.
pub(crate) fn two_of_python(script: &str, place: Place<'_>) -> String {
    let said = support::pair(&format!("{PYTHON} {SCRIPTS}/{script}"), place, &[]);
    let said = said.unwrap_or_else(|why| panic!("{why}"));
    assert!(said.contains("all well"), "{said}");
    said
}

/// On one host by each way, and between two network namespaces.
fn at_all_places(each: impl Fn(Place<'_>)) {
    let hosts = Hosts::new();
    let apart = hosts.as_ref().map(Place::Apart);
    PATHS.map(Place::Here).into_iter().chain(apart).for_each(each);
}

/// Goal: programs of Python that meet by the connection manager do what it has: connections by one call and by events, refusals,
/// queue pairs of the program's own, datagrams, multicast groups.
#[test]
fn two_programs_of_python_meet_by_the_connection_manager() {
    if !has_pyverbs() {
        return;
    }
    at_all_places(|place| drop(two_of_python("meets.py", place)));
}

/// Goal: whatever the tests of rdma-core ask of a device is there, but for what needs a vendor's device, hardware, or huge pages.
/// Method: those of the distribution's package, read from where it has put them.
#[test]
fn the_tests_of_rdma_core_pass_through_shared_memory() {
    let _ = tests_of_rdma_core("shm");
}

#[test]
fn the_tests_of_rdma_core_pass_over_udp() {
    let _ = tests_of_rdma_core("udp");
}

/// How many have run and were skipped, in the words of their runner; `None`, after it has said why, if there are none.
pub(crate) fn tests_of_rdma_core(path: &str) -> Option<String> {
    const PACKED: &str = "/usr/share/doc/rdma-core/tests";
    if !has_pyverbs() {
        return None;
    }
    if !Path::new(PACKED).is_dir() {
        println!("skipped: no tests of rdma-core: its package has none here");
        return None;
    }
    let place =
        std::env::temp_dir().join(format!("adverb-rdma-core-{path}-{}", std::process::id()));
    std::fs::create_dir(&place).unwrap();
    let unpack = "cp -r \"$0\" . && find tests -name '*.gz' -exec gunzip {} +";
    let unpacked = Command::new("sh").args(["-c", unpack, PACKED]).current_dir(&place).status();
    // They meet at one port, and in one group: each path is tried on a host of its own.
    let line = format!("{PYTHON} tests/run_tests.py --dev soft_lo -v");
    let hosts = Hosts::made().ok();
    let command = hosts.as_ref().map(|hosts| hosts.on(0, &line));
    let mut command = command.unwrap_or_else(|| support::command(&line));
    command.current_dir(&place);
    let set = [("ADVERB_PATH", path), ("ADVERB_DEVICES", "soft_lo"), ("ADVERB_EXPLAIN", "0")];
    let output = command.envs(set).output();
    std::fs::remove_dir_all(&place).unwrap();
    let output = output.unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    // What the processes of a test have to say is not where its verdict is.
    let why = String::from_utf8_lossy(&output.stdout);
    let is_well = unpacked.unwrap().success() && output.status.success();
    assert!(is_well, "{}\n{said}\n{why}", output.status);
    let passed = said.lines().filter(|line| line.ends_with("... ok") || *line == "ok").count();
    let skipped = said.lines().filter_map(|line| line.split_once("... skipped "));
    let lacking: Vec<_> = skipped
        .filter(|(test, why)| !LACKING.iter().any(|lack| why.contains(lack) || test.contains(lack)))
        .collect();
    assert!(lacking.is_empty() && passed > 100, "{passed} have passed; skipped: {lacking:?}");
    let last = said.lines().filter(|line| line.starts_with("Ran ") || line.starts_with("OK"));
    Some(last.collect::<Vec<_>>().join(": "))
}

/// Why tests of rdma-core may be skipped, and of what they may be.
const LACKING: [&str; 10] = [
    "MLX5",
    "EFA",
    "cuda",
    "Allocating dmabuf",
    "PCI device",
    "Raw Packet",
    "QP type 8",
    "Tag Matching",
    "huge pages",
    // By a function of a vendor's.
    "Converting timestamp",
];

/// Goal: the acknowledgement that a program waits for is not behind the other's answer, if both wait so.
#[test]
fn two_programs_that_wait_for_their_requests_first_have_acknowledgements_before_answers() {
    leaves_at_once(&[]);
}

/// Goal: the acknowledgement that a program waits for is not behind the next call of one that answers nothing.
#[test]
fn a_program_that_answers_nothing_acknowledges_before_it_has_the_message() {
    leaves_at_once(&["silent"]);
}

/// Method: sets of tries until one holds: a helper may have taken the message of a program that had no processor, and acknowledges
/// it later.
fn leaves_at_once(arguments: &[&str]) {
    let Some(program) = Compiled::new("urgent", &["-O1", "-libverbs"]) else {
        return;
    };
    let set = [("ADVERB_PATH", "shm"), ("ADVERB_DEVICES", "soft_lo"), ("ADVERB_EXPLAIN", "0")];
    let holds = |said: &String| {
        let in_time = said.split_once(" of ").and_then(|(in_time, _)| in_time.parse::<u32>().ok());
        in_time.is_some_and(|in_time| in_time >= IN_TIME_MIN)
    };
    let mut sets = Vec::new();
    while !sets.last().is_some_and(holds) {
        assert!(sets.len() < SETS_MAX, "{sets:?}");
        sets.push(support::alone(program.path(), arguments, &set));
    }
}

/// Sets of ten tries.
const SETS_MAX: usize = 8;
/// Where other programs want the processors, half a set is in time by chance.
const IN_TIME_MIN: u32 = 8;

/// That which the distribution's packages are for.
const PYTHON: &str = "/usr/bin/python3";
const SCRIPTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs");

pub(crate) fn has_pyverbs() -> bool {
    let has = Command::new(PYTHON).args(["-c", "import pyverbs.qp"]).output();
    let has = has.is_ok_and(|output| output.status.success());
    if !has {
        println!("skipped: no pyverbs: it is not installed");
    }
    has
}
