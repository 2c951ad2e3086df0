//! Programs that are no pairs of server and client: ranks of MPI, one that waits for events, one that runs until it is
//! interrupted; and devices of hardware beside the software's.

use super::compiled::Compiled;
use super::support::{self, Hosts, PATHS, Place, is_installed};
use std::io::{BufRead, BufReader, Lines};
use std::process::{Child, ChildStdout, Command};
use std::thread;
use std::time::{Duration, SystemTime};

/// Goal: Open MPI runs over UCX's transport on reliable connections: messages, collectives, one-sided operations.
#[test]
fn four_ranks_of_open_mpi_run_over_ucx() {
    if let Some(ranks) = Ranks::new() {
        PATHS.iter().for_each(|path| drop(ranks.run(BY_UCX, Place::Here(path))));
    }
}

/// Goal: Open MPI runs over libfabric, whose provider of verbs meets by the connection manager: the same as over UCX.
#[test]
fn four_ranks_of_open_mpi_run_over_libfabric() {
    let (Some(ranks), Some(hosts)) = (Ranks::new(), Hosts::new()) else {
        return;
    };
    hosts.name_them().expect("files in /etc/netns");
    PATHS.iter().for_each(|path| drop(ranks.run(BY_LIBFABRIC, Place::Within(&hosts, path))));
}

/// Goal: ranks on two hosts reach each other over the network alone. Method: one launcher, on the first host; its own
/// messages take the same cable.
#[test]
fn four_ranks_of_open_mpi_run_between_two_network_namespaces() {
    let (Some(ranks), Some(hosts)) = (Ranks::new(), Hosts::new()) else {
        return;
    };
    hosts.name_them().expect("files in /etc/netns");
    for by in [BY_UCX, BY_LIBFABRIC] {
        ranks.run(by, Place::Apart(&hosts));
    }
}

/// The program that four ranks run.
pub(crate) struct Ranks(Compiled);

impl Ranks {
    /// `None`, after it has said why, if this cannot be had here.
    pub(crate) fn new() -> Option<Self> {
        if !is_installed("mpirun") || !is_installed("ucx_info") {
            return None;
        }
        Compiled::by("mpicc", "ranks", &["-O1"]).map(Self)
    }

    /// What the ranks print, which must end well. On [`Hosts`], those have names.
    pub(crate) fn run(&self, by: &str, place: Place<'_>) -> String {
        let program = self.0.path();
        let line = match place {
            Place::Here(_) | Place::Within(..) => format!("-np 4 {program}"),
            Place::Apart(hosts) => {
                let two = |host| format!("-np 2 {} {program}", hosts.within(host));
                format!("{} : {}", two(0), two(1))
            }
        };
        let mut command = place.command(0, &format!("{MPIRUN} {by} {line}"));
        command.envs([
            ("ADVERB_DEVICES", place.device()),
            ("ADVERB_EXPLAIN", "0"),
            ("UCX_TLS", "rc_verbs,ud_verbs:aux,self"),
            ("UCX_NET_DEVICES", &format!("{}:1", place.device())),
        ]);
        if let Place::Apart(_) = place {
            command.envs([
                ("ADVERB_PATH", "udp"),
                ("PMIX_MCA_ptl_base_if_include", "eth0"),
                ("PMIX_MCA_ptl_base_remote_connections", "1"),
            ]);
        }
        let output = support::ended(command.spawn().unwrap());
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            output.status.success() && said.contains("4 ranks"),
            "{}: {output:?}",
            place.name()
        );
        said
    }
}

/// Neither shared memory nor sockets of Open MPI's own.
const MPIRUN: &str = "mpirun --allow-run-as-root --oversubscribe --mca btl ^openib,vader,tcp";
pub(crate) const BY_UCX: &str = "--mca pml ucx --mca osc ucx";
pub(crate) const BY_LIBFABRIC: &str =
    "--mca pml cm --mca mtl ofi --mca mtl_ofi_provider_include verbs;ofi_rxm";

/// A program whose lines are read while it runs; it ends with this value.
struct Running {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Running {
    fn new(mut command: Command) -> Self {
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    /// The next line with this in it.
    fn line_with(&mut self, word: &str) -> String {
        self.lines
            .by_ref()
            .map_while(Result::ok)
            .find(|line| line.contains(word))
            .unwrap_or_else(|| panic!("it ended before it printed {word}"))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // `timeout` ends what it runs if it is asked to end, and not if it is killed.
        let number = self.child.id().to_string();
        for turn in 0..100 {
            if self.child.try_wait().is_ok_and(|ended| ended.is_some()) {
                return;
            }
            if turn == 0 {
                let _ = Command::new("kill").args(["-TERM", &number]).status();
            }
            thread::sleep(Duration::from_millis(20));
        }
        let _ = self.child.kill(); // It may have ended.
        let _ = self.child.wait();
    }
}

#[test]
fn a_program_that_waits_for_events_sees_that_an_address_came_and_a_port_went() {
    if !is_installed("ibv_asyncwatch") {
        return;
    }
    if let Some(hosts) = Hosts::new() {
        watch_events(&hosts);
    }
}

/// What `ibv_asyncwatch` prints when an address comes and the port goes, which it does not outlast.
pub(crate) fn watch_events(hosts: &Hosts) -> String {
    let mut watch = Running::new(hosts.on(0, "timeout 30 stdbuf -oL ibv_asyncwatch -d soft_eth0"));
    watch.line_with("async event FD");
    hosts.ip(0, "addr add 10.9.8.77/24 dev eth0");
    let came = watch.line_with("IBV_EVENT_GID_CHANGE");
    hosts.ip(0, "link set eth0 down");
    [came, watch.line_with("IBV_EVENT_PORT_ERR")].join("\n")
}

#[test]
fn perftest_runs_until_it_is_interrupted() {
    if !is_installed("ib_write_bw") {
        return;
    }
    let hosts = Hosts::new();
    let apart = hosts.as_ref().map(Place::Apart);
    let [shm, udp] = PATHS.map(Place::Here);
    let (some, others) = BANDWIDTH.split_at(2);
    let places = [(shm, some), (udp, others)].into_iter();
    for (place, programs) in places.chain(apart.map(|apart| (apart, &BANDWIDTH[..]))) {
        thread::scope(|all| {
            for program in programs {
                all.spawn(move || run_infinitely(program, place));
            }
        });
    }
}

/// The tests of bandwidth.
pub(crate) const BANDWIDTH: [&str; 4] = ["ib_send_bw", "ib_write_bw", "ib_read_bw", "ib_atomic_bw"];

/// The last line of a test of bandwidth that ends when it is interrupted.
pub(crate) fn run_infinitely(program: &str, place: Place<'_>) -> String {
    let (port, device) = (support::port(), place.device());
    let line =
        format!("timeout 60 stdbuf -oL {program} --run_infinitely -D 1 -F -d {device} -p {port}");
    let mut server = Running::new(place.command(0, &line));
    support::until_it_listens(port, &mut server.child, place);
    let line = format!("{line} {}", place.address(0));
    let mut client = Running::new(place.command(1, &line));
    let bytes = if program == "ib_atomic_bw" { " 8 " } else { " 65536 " };
    let [_, last] = [(); 2].map(|()| client.line_with(bytes));
    let ended = client.child.try_wait().unwrap();
    assert!(ended.is_none(), "{program}, {}: it has ended by itself", place.name());
    let number = client.child.id().to_string();
    let sent = Command::new("kill").args(["-INT", &number]).status().unwrap();
    assert!(sent.success());
    client.child.wait().unwrap();
    last
}

/// Goal: files of processes that were killed go after a while, those of processes that run stay, and no link leads elsewhere.
#[test]
fn the_files_of_killed_programs_are_removed_by_the_next() {
    let Some(program) = Compiled::new("looks", &[]) else {
        return;
    };
    let base = std::env::temp_dir().join(format!("adverb-leftovers-{}", std::process::id()));
    std::fs::create_dir(&base).unwrap();
    let looks = || {
        let mut command = support::command(program.path());
        command.env("TMPDIR", &base).env("ADVERB_EXPLAIN", "0");
        let mut running = Running::new(command);
        assert_eq!(running.line_with("CA"), "1: CA");
        running
    };
    let trees = || {
        let names = std::fs::read_dir(&base).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
        names.sort_unstable();
        names
    };
    let mut killed = looks();
    killed.child.kill().unwrap();
    killed.child.wait().unwrap();
    let [tree] = &*trees() else { panic!("one directory: {:?}", trees()) };
    drop(looks());
    assert_eq!(trees(), std::slice::from_ref(tree), "the next one uses it");

    // As of another set of devices: of one that was killed, one that was killed sooner, and one that runs; all long ago.
    let aged = |path: &std::path::Path| {
        let long_ago = SystemTime::now() - Duration::from_secs(60 * 60);
        std::fs::File::open(path).unwrap().set_modified(long_ago).unwrap();
    };
    let named = |name: &str| base.join(format!("{}{name}", &tree[..tree.rfind('-').unwrap() + 1]));
    std::fs::rename(base.join(tree), named("killed")).unwrap();
    aged(&named("killed"));
    let running = looks();
    assert_eq!(trees(), std::slice::from_ref(tree));
    std::fs::rename(base.join(tree), named("running")).unwrap();
    std::fs::create_dir_all(named("new-1").join("class")).unwrap();
    [named("running"), named("new-1")].iter().for_each(|path| aged(path));
    let elsewhere = base.join("elsewhere");
    std::fs::create_dir(&elsewhere).unwrap();
    std::os::unix::fs::symlink(&elsewhere, named("link")).unwrap();
    drop(looks());
    let kept = [tree.clone(), file_name(&named("link")), file_name(&named("running"))];
    assert_eq!(trees(), [&kept[..], &["elsewhere".to_owned()]].concat());

    // A process that finds its own directory removes others, too.
    std::fs::create_dir_all(named("ended").join("class")).unwrap();
    aged(&named("ended"));
    drop(looks());
    assert_eq!(trees(), [&kept[..], &["elsewhere".to_owned()]].concat());
    drop(running);
    std::fs::remove_dir_all(&base).unwrap();
}

fn file_name(path: &std::path::Path) -> String {
    path.file_name().unwrap().to_str().unwrap().to_owned()
}

/// Goal: what belongs to hardware goes to the library that made it, untouched. Method: a stand-in for that library, which
/// names each call, and checks that its own objects come back.
#[test]
fn devices_of_hardware_go_by_their_own_library() {
    let flags = ["-shared", "-fPIC", "-Wl,-soname,libibverbs.so.1", "-Wno-unused-parameter"];
    let (Some(library), Some(program)) =
        (Compiled::new("hardware", &flags), Compiled::new("through", &["-libverbs"]))
    else {
        return;
    };
    let place = std::env::temp_dir().join(format!("adverb-hardware-{}.d", std::process::id()));
    std::fs::create_dir(&place).unwrap();
    std::fs::copy(library.path(), place.join("libibverbs.so.1")).unwrap();
    let lists = ["", "hw,soft_lo", "soft_lo,hw"];
    let said = std::panic::catch_unwind(|| {
        lists.map(|devices| {
            let set = [("LD_LIBRARY_PATH", place.to_str().unwrap()), ("ADVERB_DEVICES", devices)];
            support::alone(program.path(), &[], &set)
        })
    });
    std::fs::remove_dir_all(&place).unwrap();
    let [said, hardware_first, software_first] = said.unwrap();
    let devices = |said: &str| -> Vec<String> {
        said.lines().filter_map(|line| Some(line.strip_prefix("device ")?.to_owned())).collect()
    };
    assert_eq!(devices(&hardware_first), ["real0", "soft_lo"]);
    assert_eq!(devices(&software_first), ["soft_lo", "real0"]);
    for call in [
        "get_device_guid",
        "open_device",
        "query_device",
        "alloc_pd",
        "reg_mr",
        "create_cq",
        "create_qp",
        "modify_qp",
        "post_send",
        "poll_cq",
        "destroy_qp",
        "destroy_cq",
        "dereg_mr",
        "dealloc_pd",
        "close_device",
        "free_device_list",
        "query_port",
        "query_gid",
        "query_pkey",
        "query_qp",
        "resize_cq",
        "attach_mcast",
        "detach_mcast",
        "rereg_mr",
        "create_srq",
        "modify_srq",
        "query_srq",
        "destroy_srq",
        "create_ah",
        "destroy_ah",
        "create_comp_channel",
        "get_cq_event",
        "ack_cq_events",
        "get_async_event",
        "ack_async_event",
        "destroy_comp_channel",
    ] {
        assert!(said.lines().any(|line| line == call), "{call} has not arrived: {said}");
    }
}
