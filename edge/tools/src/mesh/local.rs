//! A mesh on one machine: this program as many processes, one for each node.
//!
//! Each child says its row as a line of JSON.

use std::io::BufRead;
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use super::node::Row;
use super::report::{Life, Report};
use crate::args::MeshArgs;
use crate::child::Child;
use crate::failure::{Doing, Failure};
use crate::here;

/// What is heard of a child: its number, which life of it, and a line, or its end.
type Heard = (usize, u32, Option<String>);

struct Nodes<'a> {
    args: &'a MeshArgs,
    ports: Vec<u16>,
    children: Vec<Option<Child>>,
    lives: Vec<u32>,
    tell: Sender<Heard>,
    start: Instant,
}

/// Runs a whole mesh here, until `stop` at most, and has `show` called now and then.
pub(super) fn run(
    args: &MeshArgs,
    size: usize,
    stop: &AtomicBool,
    mut show: impl FnMut(&Report),
) -> Result<Report, Failure> {
    let (tell, heard) = mpsc::channel();
    let mut nodes = Nodes {
        args,
        ports: free_ports(size)?,
        children: (0..size).map(|_| None).collect(),
        lives: vec![0; size],
        tell,
        start: Instant::now(),
    };
    for rank in 0..size {
        nodes.start(rank)?;
    }
    let mut report = Report::new(size);
    nodes.attend(&heard, stop, &mut report, &mut show)?;
    Ok(report)
}

impl Nodes<'_> {
    fn left(&self) -> Duration {
        Duration::from_secs_f64(self.args.duration).saturating_sub(self.start.elapsed())
    }

    fn start(&mut self, rank: usize) -> Result<(), Failure> {
        let here = here::address();
        let at = |port: &u16| SocketAddr::new(here, *port).to_string();
        let nodes: Vec<_> = self.ports.iter().map(at).collect();
        let mut command = Child::command()?;
        command.args(["mesh", "--child", "--nodes", &nodes.join(",")]);
        command.args(["--rank", &rank.to_string(), "--size", &self.args.size.to_string()]);
        command.args(["--duration", &self.left().as_secs_f64().max(0.001).to_string()]);
        command.args(["--traffic", self.args.traffic.name(), "--wait", self.args.wait.name()]);
        let mut child = Child::start(command, "a node")?;
        let life = self.lives.get(rank).copied().unwrap_or(0);
        if let Some(stdout) = child.take_stdout() {
            let tell = self.tell.clone();
            thread::spawn(move || {
                for line in stdout.lines().map_while(Result::ok) {
                    let _ = tell.send((rank, life, Some(line)));
                }
                let _ = tell.send((rank, life, None));
            });
        }
        if let Some(place) = self.children.get_mut(rank) {
            *place = Some(child);
        }
        Ok(())
    }

    /// Listens to the children until the last has ended.
    fn attend(
        &mut self,
        heard: &Receiver<Heard>,
        stop: &AtomicBool,
        report: &mut Report,
        show: &mut impl FnMut(&Report),
    ) -> Result<(), Failure> {
        let mut running = self.children.len();
        let mut shown = Instant::now();
        let every = self.args.kill_every.map(Duration::from_secs_f64);
        let mut next_death = every;
        let mut reborn: Option<(usize, Duration)> = None;
        let mut victim = 0;
        let mut stopped = false;
        while running > 0 || reborn.is_some() {
            if !stopped && stop.load(Ordering::Relaxed) {
                stopped = true;
                (next_death, reborn) = (None, None);
                self.children.iter_mut().flatten().for_each(Child::stop);
            }
            match heard.recv_timeout(TICK) {
                Ok((rank, life, Some(line))) => {
                    if let Ok(row) = serde_json::from_str::<Row>(&line) {
                        report.note(rank, life, row);
                    }
                }
                Ok((rank, _, None)) => {
                    running -= 1;
                    self.reap(rank, report);
                }
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
            }
            if shown.elapsed() >= SHOW_EVERY {
                shown = Instant::now();
                report.elapsed = self.start.elapsed();
                show(report);
            }
            let now = self.start.elapsed();
            if let (Some(every), Some(death)) = (every, next_death)
                && now >= death
                && reborn.is_none()
            {
                next_death = Some(death + every);
                // Not so near the end that it could not come back.
                if self.left() > every / 2 {
                    self.kill(victim, report);
                    reborn = Some((victim, now + every / 4));
                    victim = (victim + 1) % self.children.len();
                }
            }
            if let Some((rank, when)) = reborn
                && now >= when
            {
                reborn = None;
                if let Some(life) = self.lives.get_mut(rank) {
                    *life += 1;
                }
                self.start(rank)?;
                running += 1;
                report.set_life(rank, Life::Back);
            }
        }
        report.elapsed = self.start.elapsed();
        Ok(())
    }

    fn kill(&mut self, rank: usize, report: &mut Report) {
        if let Some(child) = self.children.get_mut(rank).and_then(Option::as_mut) {
            child.kill();
            report.deaths += 1;
            report.set_life(rank, Life::Killed);
        }
    }

    /// A child has ended: of itself, or because it was killed.
    fn reap(&mut self, rank: usize, report: &mut Report) {
        let child = self.children.get_mut(rank).and_then(Option::take);
        let status = child.and_then(|mut child| child.wait().ok());
        if report.life(rank) == Life::Killed {
            return;
        }
        match status.is_some_and(|status| status.success()) {
            true => report.set_life(rank, Life::Done),
            false => report.set_life(rank, Life::Failed),
        }
    }
}

/// Ports that are free now.
pub(crate) fn free_ports(count: usize) -> Result<Vec<u16>, Failure> {
    let here = here::address();
    let listeners: Result<Vec<_>, _> = (0..count).map(|_| TcpListener::bind((here, 0))).collect();
    let listeners = listeners.doing("looking for free ports")?;
    let ports: Result<Vec<_>, _> =
        listeners.iter().map(|l| l.local_addr().map(|address| address.port())).collect();
    ports.doing("looking for free ports")
}

const TICK: Duration = Duration::from_millis(50);
const SHOW_EVERY: Duration = Duration::from_secs(1);
