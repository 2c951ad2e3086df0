//! The control connection: one JSON value a line, over TCP, between the two ends of a test.
//!
//! The client orders, the server answers. A test runs between `Ready` and `Stop`, and while it runs
//! neither side reads the connection for longer than it takes to see that nothing is there. The
//! other end may be a stranger: a line has a greatest length, a read has a time limit, and
//! anything that is not an [`Order`] or an [`Answer`] ends the connection with an error.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::cpu;
use super::floor::FloorSpec;
use super::measure::Pattern;
use super::plan::Tuning;
use super::rdma::Contact;
use crate::failure::{Doing, Failure};

/// What the client wants of the server.
#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Order {
    /// The first line of every connection.
    Hello {
        /// What the line speaks; must be [`PROTOCOL`].
        protocol: String,
        /// Bind the server to a processor of its own.
        pin: bool,
    },
    /// Make pages that both processes map, for floors: answered with `Ready`.
    Share {
        /// Length of each half of them.
        half_bytes: usize,
    },
    /// Run the passive side of a floor.
    Floor(FloorSpec),
    /// Open a device and connect a queue pair.
    Open {
        /// How the queue pair should be.
        tuning: Tuning,
        /// How the client's queue pair can be reached.
        contact: Contact,
    },
    /// Run the passive side of an RDMA test.
    Run {
        /// What the passive side does.
        pattern: Pattern,
        /// Message length.
        bytes: u64,
    },
    /// The test is over: answer with [`Answer::Done`].
    Stop,
    /// The run is over, and all of it was done: a client that hangs up without this word has failed.
    End,
}

/// What the server says to an order.
#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Answer {
    /// To `Hello`.
    Hello {
        /// What the line speaks; must be [`PROTOCOL`].
        protocol: String,
    },
    /// To `Floor` and `Run`: the passive side is running.
    Ready {
        /// Where a floor's passive side listens; 0 for an RDMA test.
        port: u16,
    },
    /// To `Open`: how the server's queue pair can be reached.
    Opened {
        /// Device, address and number.
        contact: Contact,
    },
    /// To `Stop`.
    Done(Received),
    /// To any order: it cannot be followed.
    Refused {
        /// Why, for a person.
        why: String,
    },
}

/// What a passive side has received, as far as it counts.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub(crate) struct Received {
    /// Bytes after the first arrival.
    pub(crate) bytes: u64,
    /// Time from the first arrival to the last.
    pub(crate) elapsed_ns: u64,
}

/// One end of the connection.
#[derive(Debug)]
pub(crate) struct Control {
    stream: TcpStream,
    /// Bytes that have arrived and are not yet a line.
    inbox: Vec<u8>,
}

impl Control {
    /// Takes over a connection.
    pub(crate) fn new(stream: TcpStream) -> Result<Self, Failure> {
        stream.set_nodelay(true).doing("setting up the control connection")?;
        stream.set_write_timeout(Some(ANSWER_TIME)).doing("setting up the control connection")?;
        Ok(Self { stream, inbox: Vec::new() })
    }

    /// `port` at this side's address, as the other side can reach it.
    pub(crate) fn local(&self, port: u16) -> Result<SocketAddr, Failure> {
        self.stream.local_addr().map(|addr| at_port(addr, port)).doing("asking for an address")
    }

    /// `port` at the other side's address.
    pub(crate) fn peer(&self, port: u16) -> Result<SocketAddr, Failure> {
        self.stream.peer_addr().map(|addr| at_port(addr, port)).doing("asking for an address")
    }

    /// Sends one line.
    pub(crate) fn send<T: Serialize>(&mut self, message: &T) -> Result<(), Failure> {
        let mut line = serde_json::to_vec(message).doing("writing a control message")?;
        line.push(b'\n');
        self.stream.set_nonblocking(false).doing("writing to the other side")?;
        self.stream.write_all(&line).doing("writing to the other side")
    }

    /// Waits for one line, at most `patience`.
    ///
    /// # Errors
    ///
    /// If the other side is silent, gone, or says something that is not a `T`.
    pub(crate) fn receive<T: DeserializeOwned>(
        &mut self,
        patience: Duration,
    ) -> Result<T, Failure> {
        self.receive_or_end(patience)?.ok_or_else(closed)
    }

    /// Waits for one line, at most `patience`. `None` if the other side has hung up instead.
    ///
    /// # Errors
    ///
    /// As [`Control::receive`], except for the orderly end.
    pub(crate) fn receive_or_end<T: DeserializeOwned>(
        &mut self,
        patience: Duration,
    ) -> Result<Option<T>, Failure> {
        let deadline = Instant::now() + patience;
        self.stream.set_nonblocking(false).doing("reading from the other side")?;
        loop {
            if let Some(message) = self.take_line()? {
                return Ok(Some(message));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(silent(patience));
            }
            self.stream.set_read_timeout(Some(left)).doing("reading from the other side")?;
            if !self.fill(patience)? {
                return Ok(None);
            }
        }
    }

    /// Takes one line if there is one, without waiting.
    ///
    /// # Errors
    ///
    /// As [`Control::receive`], except that silence is none.
    pub(crate) fn try_receive<T: DeserializeOwned>(&mut self) -> Result<Option<T>, Failure> {
        self.stream.set_nonblocking(true).doing("reading from the other side")?;
        if !self.fill(Duration::ZERO)? {
            return Err(closed());
        }
        self.take_line()
    }

    /// Sends an order and waits for the answer.
    ///
    /// # Errors
    ///
    /// As [`Control::receive`], or if the server refuses.
    pub(crate) fn order(&mut self, order: &Order) -> Result<Answer, Failure> {
        self.send(order)?;
        self.answer()
    }

    /// Waits for the answer to an order.
    ///
    /// # Errors
    ///
    /// As [`Control::order`].
    pub(crate) fn answer(&mut self) -> Result<Answer, Failure> {
        let answer = self.receive(ANSWER_TIME)?;
        if matches!(answer, Answer::Refused { .. }) { Err(refusal(&answer)) } else { Ok(answer) }
    }

    /// Why a run failed on this side: if the other side has hung up, or does so soon, that too. A process that is killed
    /// holds its connections until its memory has been freed.
    pub(crate) fn explain(&mut self, failure: Failure) -> Failure {
        let is_of_run = matches!(failure, Failure::Failed(_)) && !failure.is_closed_output();
        let end = Instant::now() + NEWS_TIME;
        while is_of_run && Instant::now() < end {
            match self.try_receive::<Answer>() {
                Err(news) if news.to_string() != failure.to_string() => {
                    return news.during(failure);
                }
                Err(_) => break,
                Ok(Some(_)) => {}
                Ok(None) => thread::sleep(LOOK_AGAIN),
            }
        }
        failure
    }

    /// Ends the test that runs, and returns what the server has received.
    pub(crate) fn stop(&mut self) -> Result<Received, Failure> {
        let answer = self.order(&Order::Stop)?;
        let Answer::Done(received) = answer else {
            return Err(unexpected(&answer));
        };
        Ok(received)
    }

    /// Sends an order that starts a test; returns the port that the server names.
    pub(crate) fn start(&mut self, order: &Order) -> Result<u16, Failure> {
        let answer = self.order(order)?;
        let Answer::Ready { port } = answer else {
            return Err(unexpected(&answer));
        };
        Ok(port)
    }

    /// Reads what has arrived, which may be nothing if there is no `patience`. `false`: the other side
    /// has hung up.
    fn fill(&mut self, patience: Duration) -> Result<bool, Failure> {
        let mut chunk = [0; 4096];
        match self.stream.read(&mut chunk) {
            Ok(0) => Ok(false),
            Ok(len) => {
                self.inbox.extend(chunk.iter().take(len));
                Ok(true)
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(true),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                if patience.is_zero() {
                    Ok(true)
                } else {
                    Err(silent(patience))
                }
            }
            Err(error) => Err(error).doing("reading from the other side"),
        }
    }

    /// Parses the first whole line that has arrived.
    fn take_line<T: DeserializeOwned>(&mut self) -> Result<Option<T>, Failure> {
        let Some(end) = self.inbox.iter().position(|&byte| byte == b'\n') else {
            if self.inbox.len() > LINE_BYTES_MAX {
                return Err(Failure::failed("the other side does not speak adverb's protocol"));
            }
            return Ok(None);
        };
        let line: Vec<u8> = self.inbox.drain(..=end).collect();
        let parsed = serde_json::from_slice(&line);
        parsed.map(Some).doing("the other side does not speak adverb's protocol")
    }
}

/// The same host at another port; an IPv4 address in IPv6 clothes is undressed, because sockets of
/// its own family are faster.
fn at_port(addr: SocketAddr, port: u16) -> SocketAddr {
    match addr.ip().to_canonical() {
        ip @ IpAddr::V4(_) => SocketAddr::new(ip, port),
        IpAddr::V6(_) => {
            let mut same = addr; // With its scope.
            same.set_port(port);
            same
        }
    }
}

/// An answer came to an order that it does not belong to.
pub(crate) fn unexpected(answer: &Answer) -> Failure {
    Failure::Failed(format!("the server answers out of turn: {answer:?}"))
}

/// The server has said something instead of going on.
pub(crate) fn refusal(answer: &Answer) -> Failure {
    let Answer::Refused { why } = answer else {
        return unexpected(answer);
    };
    Failure::Failed(format!("the server says: {why}"))
}

/// The other side has hung up.
fn closed() -> Failure {
    Failure::failed("the other side has closed the connection")
}

/// No message came in time.
fn silent(patience: Duration) -> Failure {
    Failure::Failed(format!("the other side has been silent for {} s", patience.as_secs()))
}

/// Decides, in a loop that spins, when to look up from the work.
///
/// Looking costs a system call, so it happens only after many turns without any progress.
#[derive(Debug)]
pub(crate) struct Watch<'a> {
    control: &'a mut Control,
    spins: u32,
    idle_since: Option<Instant>,
    single_cpu: bool,
}

impl<'a> Watch<'a> {
    /// Watches over a test that is about to run.
    pub(crate) fn new(control: &'a mut Control) -> Self {
        Self { control, spins: 0, idle_since: None, single_cpu: !cpu::enough() }
    }

    /// Something happened in this turn.
    #[inline]
    pub(crate) fn busy(&mut self) {
        self.spins = 0;
        self.idle_since = None;
    }

    /// This turn has waited, so that it is time to look up whatever the number of turns.
    #[inline]
    pub(crate) fn waited(&mut self) {
        self.spins = SPINS_PER_LOOK;
    }

    /// Nothing happened in this turn of a passive side. `true`: the client wants to stop.
    ///
    /// # Errors
    ///
    /// If the client is gone or talks nonsense.
    #[inline]
    pub(crate) fn stop_asked(&mut self) -> Result<bool, Failure> {
        if !self.time_to_look() {
            return Ok(false);
        }
        match self.control.try_receive()? {
            None => Ok(false),
            Some(Order::Stop) => Ok(true),
            Some(order) => {
                Err(Failure::Failed(format!("an order in the middle of a test: {order:?}")))
            }
        }
    }

    /// The passive side has nothing to do at all: sleeps until the client wants to stop.
    ///
    /// # Errors
    ///
    /// As [`Watch::stop_asked`].
    pub(crate) fn sleep_until_stop(&mut self) -> Result<(), Failure> {
        let order = self.control.receive(LONGEST_TEST)?;
        if matches!(order, Order::Stop) {
            return Ok(());
        }
        Err(Failure::Failed(format!("an order in the middle of a test: {order:?}")))
    }

    /// Nothing happened in this turn of an active side. `true`: about a millisecond has passed, and
    /// the server is there.
    ///
    /// # Errors
    ///
    /// If the server is gone or gave up, or if nothing has happened for [`SILENCE_MAX`].
    #[inline]
    pub(crate) fn peer_lives(&mut self) -> Result<bool, Failure> {
        if !self.time_to_look() {
            return Ok(false);
        }
        if let Some(answer) = self.control.try_receive::<Answer>()? {
            return Err(refusal(&answer));
        }
        let now = Instant::now();
        let since = *self.idle_since.get_or_insert(now);
        if now.duration_since(since) > SILENCE_MAX {
            let seconds = SILENCE_MAX.as_secs();
            return Err(Failure::Failed(format!("nothing has arrived for {seconds} s")));
        }
        Ok(true)
    }

    /// Counts a turn without progress.
    #[inline]
    fn time_to_look(&mut self) -> bool {
        if self.single_cpu {
            thread::yield_now(); // The other side cannot run while we spin.
        } else {
            std::hint::spin_loop();
        }
        self.spins += 1;
        if self.spins < SPINS_PER_LOOK {
            return false;
        }
        self.spins = 0;
        true
    }
}

/// What this version speaks. Changed with every change of [`Order`] or [`Answer`].
pub(crate) const PROTOCOL: &str = "adverb-bench-3";
/// How long an answer may take. Opening a device and pinning memory is the slowest.
pub(crate) const ANSWER_TIME: Duration = Duration::from_secs(20);
/// How long after a failure the other side may hang up for that to be the reason, and how often that is looked up.
const NEWS_TIME: Duration = Duration::from_millis(500);
const LOOK_AGAIN: Duration = Duration::from_millis(5);
/// Longest line that is needed.
const LINE_BYTES_MAX: usize = 64 << 10;
/// Turns without progress between two looks at the control connection: about a millisecond.
const SPINS_PER_LOOK: u32 = 4096;
/// A test goes on for a day at most, or for some number of iterations.
const LONGEST_TEST: Duration = Duration::from_secs(7 * 86_400);
/// How long an active side waits for any progress.
const SILENCE_MAX: Duration = Duration::from_secs(15);

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn pair() -> (Control, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let there = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (here, _) = listener.accept().unwrap();
        (Control::new(here).unwrap(), there)
    }

    #[test]
    fn two_orders_in_one_segment_are_two_orders() {
        let (mut here, mut there) = pair();
        there.write_all(b"\"stop\"\n{\"run\":{\"pattern\":\"absorb\",\"bytes\":9}}\n").unwrap();
        assert!(matches!(here.receive(ANSWER_TIME).unwrap(), Order::Stop));
        assert!(matches!(here.receive(ANSWER_TIME).unwrap(), Order::Run { bytes: 9, .. }));
        assert!(here.try_receive::<Order>().unwrap().is_none());
    }

    #[test]
    fn a_stranger_gets_an_error_and_not_a_hang() {
        let (mut here, mut there) = pair();
        there.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        let error = here.receive::<Order>(ANSWER_TIME).unwrap_err();
        assert!(error.to_string().contains("does not speak"), "{error}");
    }

    /// Goal: the other side's end is said as the reason if it comes soon after the failure, behind what had been answered.
    #[test]
    fn an_end_that_comes_soon_explains_a_failure() {
        let (mut here, mut there) = pair();
        let ends = thread::spawn(move || {
            there.write_all(b"{\"ready\":{\"port\":1}}\n").unwrap();
            thread::sleep(LOOK_AGAIN * 4);
        });
        let said = here.explain(Failure::failed("a READ failed")).to_string();
        assert_eq!(said, "a READ failed: the other side has closed the connection");
        ends.join().unwrap();
        let (mut here, _there) = pair();
        assert_eq!(here.explain(Failure::failed("a READ failed")).to_string(), "a READ failed");
    }

    #[test]
    fn a_line_without_end_is_cut_off() {
        let (mut here, mut there) = pair();
        let sender = thread::spawn(move || {
            // Ends when the other side has had enough and closes.
            while there.write_all(&[b'x'; 4096]).is_ok() {}
        });
        let error = here.receive::<Order>(ANSWER_TIME).unwrap_err();
        assert!(error.to_string().contains("does not speak"), "{error}");
        drop(here);
        sender.join().unwrap();
    }

    #[test]
    fn silence_and_a_closed_connection_are_told_apart() {
        let (mut here, there) = pair();
        let silent = here.receive::<Order>(Duration::from_millis(20)).unwrap_err();
        assert!(silent.to_string().contains("silent"), "{silent}");
        drop(there);
        let closed = here.receive::<Order>(ANSWER_TIME).unwrap_err();
        assert!(closed.to_string().contains("closed"), "{closed}");
    }

    #[test]
    fn a_passive_side_notices_stop_and_a_client_that_is_gone() {
        let (mut here, mut there) = pair();
        there.write_all(b"\"stop\"\n").unwrap();
        let mut watch = Watch::new(&mut here);
        while !watch.stop_asked().unwrap() {}
        drop(there);
        let gone = loop {
            match watch.stop_asked() {
                Ok(stop) => assert!(!stop, "stopped twice"),
                Err(error) => break error,
            }
        };
        assert!(gone.to_string().contains("closed"), "{gone}");
    }
}
