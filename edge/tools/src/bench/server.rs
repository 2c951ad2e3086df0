//! The server of a run: follows the orders of its clients, each on a thread of its own.

use std::collections::VecDeque;
use std::io::{ErrorKind, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use super::control::{ANSWER_TIME, Answer, Control, Order, PROTOCOL, Received, Watch};
use super::cpu;
use super::floor;
use super::measure::{Endpoint, Link, Pattern};
use super::rdma::{self, DeviceChoice};
use crate::child::end_with_parent;
use crate::failure::{Doing, Failure};

/// How a server is started.
#[derive(Clone, Debug)]
pub(crate) struct ServerOptions {
    /// Where to listen; `None`: everywhere.
    pub(crate) bind: Option<IpAddr>,
    /// TCP port; 0: any.
    pub(crate) port: u16,
    /// Which device to use.
    pub(crate) choice: DeviceChoice,
    /// Serve one client and end, and print only the port: a parent reads it.
    pub(crate) child: bool,
}

/// Listens, and serves clients. A child has one, and ends with it.
pub(crate) fn run(options: &ServerOptions) -> Result<(), Failure> {
    options.choice.check()?;
    if options.child {
        end_with_parent()?;
    }
    let listener = listen(options)?;
    let local = listener.local_addr().doing("asking for the address to listen on")?;
    let announced = if options.child {
        writeln!(std::io::stdout(), "{}", local.port())
    } else {
        writeln!(std::io::stdout(), "listening on {local}; stop with Ctrl-C")
    };
    announced.doing("printing the port")?;
    let hall = Arc::new(Hall::default());
    if options.child {
        let (stream, _) = accept(&listener)?;
        let visit = hall.enter(&stream);
        let _ = answer(stream, &visit, &options.choice); // The parent has been told, or is gone.
        return Ok(());
    }
    loop {
        let (stream, client) = accept(&listener)?;
        let (visit, choice) = (hall.enter(&stream), options.choice.clone());
        let serve = move || match answer(stream, &visit, &choice) {
            Ok(tests) => {
                let beside =
                    if visit.had_company() { ", beside those of other clients" } else { "" };
                println!("{client}: {tests} tests{beside}");
            }
            Err(failure) => eprintln!("{client}: {failure}"),
        };
        if let Err(error) = thread::Builder::new().name("client".to_owned()).spawn(serve) {
            eprintln!("{client}: no thread for it: {error}");
        }
    }
}

/// Serves a client to its end, and tells it what went wrong.
fn answer(stream: TcpStream, visit: &Visit, choice: &DeviceChoice) -> Result<u64, Failure> {
    let mut control = Control::new(stream)?;
    serve(&mut control, visit, choice).inspect_err(|failure| {
        // It may be gone, which is then the reason.
        let _ = control.send(&Answer::Refused { why: failure.to_string() });
    })
}

/// The connected clients.
#[derive(Debug, Default)]
struct Hall(Mutex<Clients>);

#[derive(Debug, Default)]
struct Clients {
    next: u64,
    /// Those that have not greeted yet, the oldest first.
    strangers: VecDeque<(u64, TcpStream)>,
    /// Those that have, and whether another one was there at the same time.
    guests: Vec<(u64, bool)>,
}

/// One client's time there, which ends with this.
#[derive(Debug)]
struct Visit {
    hall: Arc<Hall>,
    number: u64,
}

impl Hall {
    fn clients(&self) -> MutexGuard<'_, Clients> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A client has connected. If there are too many that say nothing, the oldest of them goes.
    fn enter(self: &Arc<Self>, stream: &TcpStream) -> Visit {
        let mut clients = self.clients();
        let number = clients.next;
        clients.next += 1;
        if clients.strangers.len() >= STRANGERS_MAX
            && let Some((_, oldest)) = clients.strangers.pop_front()
        {
            let _ = oldest.shutdown(Shutdown::Both); // It may have gone already.
        }
        if let Ok(handle) = stream.try_clone() {
            clients.strangers.push_back((number, handle));
        }
        Visit { hall: Arc::clone(self), number }
    }
}

impl Visit {
    /// The client has greeted; an error if there are too many that have.
    fn is_welcome(&self) -> Result<(), Failure> {
        let mut clients = self.hall.clients();
        clients.strangers.retain(|(number, _)| *number != self.number);
        let others = clients.guests.len();
        if others >= GUESTS_MAX {
            return Err(Failure::Failed(format!(
                "this server has {others} clients, which is its bound: try again when one has ended"
            )));
        }
        clients.guests.push((self.number, false));
        if others > 0 {
            clients.guests.iter_mut().for_each(|(_, company)| *company = true);
        }
        Ok(())
    }

    /// Another client was served at the same time.
    fn had_company(&self) -> bool {
        self.hall.clients().guests.contains(&(self.number, true))
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        let mut clients = self.hall.clients();
        clients.strangers.retain(|(number, _)| *number != self.number);
        clients.guests.retain(|(number, _)| *number != self.number);
    }
}

/// Opens the port. Everywhere means IPv6, which takes IPv4 too, or IPv4 where there is no IPv6.
fn listen(options: &ServerOptions) -> Result<TcpListener, Failure> {
    let at = |ip: IpAddr| TcpListener::bind(SocketAddr::new(ip, options.port));
    match options.bind {
        Some(ip) => at(ip),
        None => at(Ipv6Addr::UNSPECIFIED.into()).or_else(|error| {
            let taken = error.kind() == ErrorKind::AddrInUse;
            if taken { Err(error) } else { at(Ipv4Addr::UNSPECIFIED.into()) }
        }),
    }
    .map_err(|error| {
        let port = options.port;
        Failure::Failed(match (error.kind(), options.bind) {
            (ErrorKind::AddrInUse, _) => {
                format!("port {port} is in use; stop what listens there or choose another: --port")
            }
            (_, Some(ip)) => format!("listening on {ip} port {port}: {error}"),
            (_, None) => format!("listening on port {port}: {error}"),
        })
    })
}

/// Waits for a client. A child waits for its parent, which may be measuring something else for a
/// while, and whose death ends it.
fn accept(listener: &TcpListener) -> Result<(TcpStream, SocketAddr), Failure> {
    loop {
        match listener.accept() {
            // A client that has hung up while it waited in line is no reason to stop serving.
            Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
            // Nor is a bound of the system that clients have reached and will leave again.
            Err(error) if matches!(error.raw_os_error(), Some(EMFILE | ENFILE)) => {
                thread::sleep(REST);
            }
            accepted => return accepted.doing("waiting for a client"),
        }
    }
}

/// Follows one client's orders to the end of its run. Returns how many tests there were.
fn serve(control: &mut Control, visit: &Visit, choice: &DeviceChoice) -> Result<u64, Failure> {
    greet(control, visit)?;
    let mut tests = 0;
    let mut link = None;
    let mut pages = None;
    loop {
        match control.receive(PATIENCE)? {
            Order::Share { half_bytes } => pages = Some(floor::Pages::offer(half_bytes, control)?),
            Order::Floor(spec) => floor::serve(spec, pages.as_ref(), control)?,
            Order::Open { tuning, contact } => {
                if !tuning.is_legal() {
                    return Err(Failure::Failed(format!("cannot serve {tuning:?}")));
                }
                link = Some(rdma::accept(control, choice, &tuning, &contact)?);
            }
            Order::Run { pattern, bytes } => match &mut link {
                Some(link) => run_test(link, pattern, bytes, control)?,
                None => return Err(Failure::failed("no queue pair has been opened")),
            },
            Order::End => return Ok(tests),
            order @ (Order::Hello { .. } | Order::Stop) => {
                return Err(Failure::Failed(format!("an order out of turn: {order:?}")));
            }
        }
        tests += 1;
    }
}

/// Exchanges the first lines.
fn greet(control: &mut Control, visit: &Visit) -> Result<(), Failure> {
    let order = control.receive(HELLO_TIME)?;
    let Order::Hello { protocol, pin } = order else {
        return Err(Failure::Failed(format!("an order before the greeting: {order:?}")));
    };
    if protocol != PROTOCOL {
        return Err(Failure::Failed(format!(
            "this server speaks {PROTOCOL}, the client {protocol}: use the same version of adverb"
        )));
    }
    visit.is_welcome()?;
    if pin {
        cpu::pin(cpu::End::Server);
    }
    control.send(&Answer::Hello { protocol })
}

/// Runs the passive side of one test.
fn run_test<E: Endpoint>(
    link: &mut Link<E>,
    pattern: Pattern,
    bytes: u64,
    control: &mut Control,
) -> Result<(), Failure> {
    let bytes = link.check_length(bytes)?;
    link.clear_mark(bytes);
    control.send(&Answer::Ready { port: 0 })?;
    link.serve(pattern, bytes, &mut Watch::new(control))?;
    control.send(&Answer::Done(Received::default()))
}

/// How long a stranger may hold a place without a word.
const HELLO_TIME: Duration = Duration::from_secs(5);
/// Clients at once that have not greeted.
const STRANGERS_MAX: usize = 128;
/// Clients at once that have: each has memory, and those that measure disturb each other.
const GUESTS_MAX: usize = 64;
/// Before a server without descriptors looks whether there are some.
const REST: Duration = Duration::from_millis(20);
/// No descriptors left, of the process or the system (`accept(2)`).
const EMFILE: i32 = 24;
const ENFILE: i32 = 23;
/// How long a client may take between two orders: it may be measuring something by itself.
const PATIENCE: Duration = Duration::from_secs(60);
const _: () = assert!(PATIENCE.as_secs() > ANSWER_TIME.as_secs());
