//! Stores: programs that serve many connections, from one thread, from several, and from a child each.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use crate::running::{Running, are_installed, explain, explained, ringed, succeed, until};
use crate::runtimes::script;
use crate::support::{Place, free_port, library};

fn redis(place: &Place, port: &str, save: &str) -> Running {
    let mut server = place.command("redis-server");
    server.args(["--port", port, "--bind", "127.0.0.1", "--save", save]).current_dir(&place.0);
    Running::serve(explain(place, &mut server), port.parse().expect("a port"))
}

fn benchmark(place: &Place, port: &str, arguments: &str) -> Command {
    let mut benchmark = place.command("redis-benchmark");
    benchmark.args(["-p", port, "-q"]).args(arguments.split_whitespace());
    benchmark
}

/// Asks redis something, from a program that is not accelerated.
fn ask_redis(port: &str, command: &str, len: usize) -> String {
    let mut client =
        TcpStream::connect(("127.0.0.1", port.parse().expect("a port"))).expect("redis");
    client.write_all(command.as_bytes()).expect("redis");
    client.write_all(b"\r\n").expect("redis");
    let mut answer = vec![0; len];
    client.read_exact(&mut answer).expect("redis");
    String::from_utf8(answer).expect("a text")
}

#[test]
fn redis_serves_its_benchmark() {
    if !are_installed(&["redis-server", "redis-benchmark"]) {
        return;
    }
    let (place, port) = (Place::new("redis"), free_port().to_string());
    let _server = redis(&place, &port, "");
    let mut plain = benchmark(&place, &port, "-n 20000 -c 50 -t set,get,lpush,lrange_100");
    let said = succeed(&mut plain);
    assert!(said.contains("requests per second"), "{said}");
    assert!(ringed(&place) > 0);
    succeed(&mut benchmark(&place, &port, "-n 50000 -P 16 -t set,get -d 3000"));
    assert_eq!(ask_redis(&port, "PING", 7), "+PONG\r\n");
}

/// Goal: a server that forks to save what it has goes on serving, and its child saves it.
/// Method: it is told to save again and again, while it is written to; then another one reads the file.
#[test]
fn redis_saves_from_a_child_under_load() {
    if !are_installed(&["redis-server", "redis-benchmark"]) {
        return;
    }
    let (place, port) = (Place::new("save"), free_port().to_string());
    let server = redis(&place, &port, "1 1");
    std::thread::scope(|threads| {
        let load =
            || succeed(&mut benchmark(&place, &port, "-n 60000 -c 20 -t set -r 5000 -d 500"));
        let load = threads.spawn(load);
        let mut saves = 0;
        until("it has been saved under load", || {
            let answer = ask_redis(&port, "BGSAVE", 1);
            saves += u32::from(answer == "+");
            std::thread::sleep(std::time::Duration::from_millis(50));
            load.is_finished()
        });
        assert!(saves > 0, "it has never begun to save");
        load.join().expect("the load");
    });
    let size = |port: &str| ask_redis(port, "DBSIZE", 5);
    let held = size(&port);
    until("all of it has been saved", || ask_redis(&port, "SAVE", 1) == "+");
    drop(server);
    let port = free_port().to_string();
    let _next = redis(&place, &port, "");
    until("it has been read", || ask_redis(&port, "PING", 1) == "+");
    assert_eq!(size(&port), held);
}

/// Goal: a server with several threads gives back what it was given.
#[test]
fn memcached_gives_back_what_it_was_given() {
    if !are_installed(&["memcached", "python3"]) {
        return;
    }
    let (place, port) = (Place::new("memcached"), free_port());
    let at = port.to_string();
    let mut server = place.command("memcached");
    server.args(["-l", "127.0.0.1", "-p", &at, "-U", "0", "-t", "3", "-m", "64", "-I", "2m"]);
    if is_root() {
        server.args(["-u", "root"]);
    }
    let _server = Running::serve(explain(&place, &mut server), port);
    let said = succeed(place.command("python3").arg(script("memcached.py")).arg(&at));
    assert!(said.contains("right: 2400"), "{said}");
    assert!(ringed(&place) > 0);
}

pub(crate) fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|meta| meta.uid() == 0)
}

/// PostgreSQL's programs, run by the user that it wants, over a copy of the library that this user may
/// read.
#[derive(Debug)]
struct Postgres {
    place: Place,
    programs: PathBuf,
    user: Option<(u32, u32)>,
    port: u16,
}

impl Postgres {
    fn new() -> Option<Self> {
        let programs = programs()?;
        let place = Place::new("postgres");
        let library = library::library();
        let copy = place.0.join("libadverb_sockets.so");
        fs::copy(library, &copy).expect("a copy");
        fs::set_permissions(&copy, fs::Permissions::from_mode(0o755)).expect("a file of ours");
        let user = is_root().then(user);
        if let Some(user) = user {
            let (user, group) = user?;
            chown(&place.0, Some(user), Some(group)).expect("a directory of ours");
        }
        Some(Self { place, programs, user: user.flatten(), port: free_port() })
    }

    /// One of its programs, accelerated or not.
    fn program(&self, name: &str, is_ours: bool) -> Command {
        let mut command = self.place.command(self.programs.join(name));
        match is_ours {
            true => command.env("LD_PRELOAD", self.place.0.join("libadverb_sockets.so")),
            false => command.env_remove("LD_PRELOAD"),
        };
        command.env("PGHOST", "127.0.0.1").env("PGPORT", self.port.to_string());
        command.env("PGUSER", "adverb").env("PGDATABASE", "postgres").current_dir(&self.place.0);
        if let Some((user, group)) = self.user {
            command.uid(user).gid(group);
        }
        command
    }

    fn start(&self) -> Running {
        let data = self.place.0.join("data");
        let mut init = self.program("initdb", false);
        succeed(
            init.args(["-U", "adverb", "-A", "trust", "-N", "-E", "UTF8", "--locale=C", "-D"])
                .arg(&data),
        );
        let mut server = self.program("postgres", true);
        server.arg("-D").arg(&data).args(["-p", &self.port.to_string()]);
        let settings = [
            "listen_addresses=127.0.0.1",
            "unix_socket_directories=",
            "fsync=off",
            "logging_collector=off",
        ];
        server.args(settings.iter().flat_map(|setting| ["-c", setting]));
        let running = Running::serve(explain(&self.place, &mut server), self.port);
        until("PostgreSQL is ready", || {
            self.program("pg_isready", false).output().is_ok_and(|output| output.status.success())
        });
        running
    }

    /// What a question brings.
    fn ask(&self, question: &str) -> String {
        let said = succeed(self.program("psql", true).args(["-Atq", "-c", question]));
        said.trim().to_owned()
    }
}

/// Where its programs are: in the path, or where Debian has them, the newest.
fn programs() -> Option<PathBuf> {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut versions: Vec<PathBuf> = versions.map(|version| version.path().join("bin")).collect();
    versions.sort();
    versions.extend(std::env::split_paths(&paths));
    let has = |path: &PathBuf| {
        ["initdb", "postgres", "pgbench"].iter().all(|name| path.join(name).exists())
    };
    let found = versions.into_iter().rev().find(has);
    if found.is_none() {
        eprintln!("skipped: PostgreSQL is not installed");
    }
    found
}

/// The user that runs PostgreSQL, which refuses to be root, and its group.
fn user() -> Option<(u32, u32)> {
    let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let of = |name: &str| {
        let fields: Vec<&str> = users
            .lines()
            .map(|line| line.split(':').collect())
            .find(|fields: &Vec<&str>| fields[0] == name)?;
        Some((fields.get(2)?.parse().ok()?, fields.get(3)?.parse().ok()?))
    };
    let found = of("postgres").or_else(|| of("nobody"));
    if found.is_none() {
        eprintln!("skipped: there is no user to run PostgreSQL");
    }
    found
}

/// Goal: a server that forks for each connection keeps its books in order.
/// Method: pgbench moves amounts between accounts, over lasting connections and over one for each
/// transaction; afterwards all sums are the same, and as many moves on record as were made. Then one
/// that only reads, with prepared statements, and a server child that is told to end.
#[test]
fn postgres_keeps_its_books() {
    let Some(postgres) = Postgres::new() else { return };
    let mut server = postgres.start();
    succeed(postgres.program("pgbench", true).args(["-i", "-q", "-s", "1"]));
    let runs = ["-c 4 -j 2 -t 150", "-c 4 -C -t 25", "-c 2 -t 50 -M prepared"];
    for arguments in runs {
        let mut bench = postgres.program("pgbench", true);
        let before = ringed(&postgres.place);
        let said = succeed(bench.arg("-n").args(arguments.split_whitespace()));
        assert!(said.contains("number of failed transactions: 0"), "{said}");
        assert!(ringed(&postgres.place) > before, "{arguments} had no rings");
    }
    let sums = postgres.ask(
        "SELECT (SELECT sum(abalance) FROM pgbench_accounts) = sum(delta), \
         (SELECT sum(tbalance) FROM pgbench_tellers) = sum(delta), \
         (SELECT sum(bbalance) FROM pgbench_branches) = sum(delta), count(*) FROM pgbench_history",
    );
    assert_eq!(sums, "t|t|t|800");
    let mut reads = postgres.program("pgbench", true);
    let said = succeed(reads.args(["-n", "-S", "-c", "4", "-T", "1", "-M", "prepared"]));
    assert!(said.contains("number of failed transactions: 0"), "{said}");
    // Much in one direction, and back.
    let rows =
        postgres.ask("SELECT string_agg(md5(n::text), '') FROM generate_series(1, 100000) n");
    assert_eq!(rows.len(), 3_200_000);
    let told = postgres
        .program("psql", true)
        .args(["-c", "SELECT pg_terminate_backend(pg_backend_pid())"])
        .output();
    let told = String::from_utf8_lossy(&told.expect("psql").stderr).into_owned();
    assert!(told.contains("terminating connection due to administrator command"), "{told}");
    assert_eq!(postgres.ask("SELECT 1"), "1");
    server.signal("INT"); // "Fast" shutdown.
    assert!(server.end().success(), "{:?}", fs::read_to_string(explained(&postgres.place)));
}
