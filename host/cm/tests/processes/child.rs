//! The other process: this test program once more, with something to do.

use adverb_rdmacm::{EventKind, EventQueue, Id, Parameters, Space, Transport};
use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// What it is to do.
const VARIABLE: &str = "ADVERB_CM_CHILD";
const PATIENCE: Duration = Duration::from_secs(120);

/// Another process, which ends with this.
pub(crate) struct Child {
    process: std::process::Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Child {
    pub(crate) fn start(mut command: Command, task: &str) -> Self {
        command.args(["--exact", "child::child", "--nocapture", "--ignored"]).env(VARIABLE, task);
        let mut process =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a process");
        let (input, output) = (process.stdin.take(), process.stdout.take());
        let output = BufReader::new(output.expect("it is piped"));
        Self { process, input: input.expect("it is piped"), output }
    }

    /// The next line that it says.
    pub(crate) fn line(&mut self) -> String {
        loop {
            let mut line = String::new();
            let len = self.output.read_line(&mut line).expect("it speaks");
            assert_ne!(len, 0, "it has ended");
            if let Some(said) = line.trim_end().strip_prefix(SAYS) {
                return said.to_owned();
            }
        }
    }

    pub(crate) fn words(&mut self) -> Vec<String> {
        self.line().split(' ').map(str::to_owned).collect()
    }

    pub(crate) fn say(&mut self, word: &str) {
        writeln!(self.input, "{word}").expect("it listens");
    }

    pub(crate) fn signal(&self, name: &str) {
        let pid = self.process.id().to_string();
        let sent = Command::new("kill").args([&format!("-{name}"), &pid]).status();
        assert!(sent.is_ok_and(|status| status.success()));
    }

    pub(crate) fn kill(&mut self) {
        self.process.kill().expect("it can be killed");
        self.process.wait().expect("it has ended");
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// How its lines begin, so that those of the test harness are none.
const SAYS: &str = "> ";

fn say(what: &str) {
    println!("{SAYS}{what}");
}

/// True once a line has come in.
fn told() -> &'static AtomicBool {
    static TOLD: AtomicBool = AtomicBool::new(false);
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_line(&mut String::new());
        TOLD.store(true, Ordering::Release);
    });
    &TOLD
}

#[test]
#[ignore = "the child of another test"]
fn child() {
    let Ok(task) = std::env::var(VARIABLE) else { return };
    match task.split(' ').collect::<Vec<_>>()[..] {
        ["serve", at] => serve(at.parse().unwrap()),
        ["connect", to, count, window] => part(&connect(to, count, window, false)),
        ["connect", to, count, window, "talk"] => part(&connect(to, count, window, true)),
        ["connect", to, count, window, "leave"] => {
            let (_queue, ids) = connect(to, count, window, false);
            std::mem::forget(ids);
            wait_until_told();
            std::process::exit(0);
        }
        ["attack", port, seed] => {
            crate::attack::send(port.parse().unwrap(), seed.parse().unwrap());
        }
        _ => panic!("{task}"),
    }
}

/// Accepts all that ask.
fn serve(at: SocketAddr) {
    let queue = EventQueue::new().unwrap();
    let listener = Id::new(&queue, Space::Tcp, Transport::Rc, 0).unwrap();
    listener.bind(at).unwrap();
    listener.listen(1024).unwrap();
    say(&format!("listening {}", listener.local().port()));
    let told = told();
    let (mut ids, mut parted, mut qpn) = (Vec::new(), 0, 0x100);
    while !told.load(Ordering::Acquire) || parted < ids.len() {
        let Some(event) = queue.next(Some(Duration::from_millis(20))).unwrap() else { continue };
        match event.kind {
            EventKind::ConnectRequest => {
                qpn += 1;
                // A peer that has given up meanwhile is no concern.
                let _ = event.id.accept(&Parameters { qpn, ..Parameters::default() });
                ids.push(event.id);
            }
            EventKind::Disconnected => parted += 1,
            // Where the message that the peer is ready was lost, its end may come first.
            EventKind::Established | EventKind::TimewaitExit => {}
            _ => panic!("{event:?}"),
        }
    }
    say(&format!("served {} parted {parted}", ids.len()));
}

/// Connects so often, `window` at a time.
fn connect(to: &str, count: &str, window: &str, talk: bool) -> (EventQueue, VecDeque<Id>) {
    let (to, count): (SocketAddr, usize) = (to.parse().unwrap(), count.parse().unwrap());
    let window: usize = window.parse().unwrap();
    let queue = EventQueue::new().unwrap();
    let (mut ids, mut begun, start) = (VecDeque::new(), 0, Instant::now());
    // Those of different processes differ.
    let mut qpn = 0x10_0000 + (std::process::id() & 0x7f) * 0x4000;
    while ids.len() < count {
        while begun < count && begun < ids.len() + window {
            let id = Id::new(&queue, Space::Tcp, Transport::Rc, 0).unwrap();
            id.resolve_addr(None, to).unwrap();
            id.resolve_route().unwrap();
            qpn += 1;
            id.connect(&Parameters { qpn, ..Parameters::default() }).unwrap();
            begun += 1;
            std::mem::forget(id); // Its events bring it back.
        }
        let event = queue.next(Some(PATIENCE)).unwrap().expect("an answer");
        match event.kind {
            EventKind::AddrResolved | EventKind::RouteResolved => {}
            EventKind::ConnectResponse => {
                event.id.ready().unwrap();
                ids.push_back(event.id);
                if talk && ids.len().is_multiple_of(100) {
                    say(&format!("up {}", ids.len()));
                }
            }
            _ => panic!("{event:?}"),
        }
    }
    let took = start.elapsed().as_millis().max(1);
    say(&format!("established {count} {took} {}", u128::try_from(count).unwrap() * 1000 / took));
    (queue, ids)
}

fn wait_until_told() {
    let told = told();
    while !told.load(Ordering::Acquire) {
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Keeps all connections until it is told to part.
fn part((queue, ids): &(EventQueue, VecDeque<Id>)) {
    wait_until_told();
    ids.iter().for_each(|id| id.disconnect().unwrap());
    let mut parted = 0;
    while parted < ids.len() {
        let event = queue.next(Some(PATIENCE)).unwrap().expect("an answer");
        match event.kind {
            EventKind::Disconnected => parted += 1,
            EventKind::TimewaitExit => {}
            _ => panic!("{event:?}"),
        }
    }
    say(&format!("parted {parted}"));
}
