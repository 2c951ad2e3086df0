//! The server of a run: follows one client's orders after another's.

use std::io::{ErrorKind, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
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

/// Listens, and serves clients one at a time.
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
    loop {
        let (stream, client) = accept(&listener)?;
        let served = Control::new(stream).and_then(|mut control| {
            serve(&mut control, &options.choice).inspect_err(|failure| {
                // It may be gone, which is then the reason.
                let _ = control.send(&Answer::Refused { why: failure.to_string() });
            })
        });
        if options.child {
            return Ok(()); // The parent has been told, or is gone.
        }
        match served {
            Ok(tests) => println!("{client}: {tests} tests"),
            Err(failure) => eprintln!("{client}: {failure}"),
        }
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
            accepted => return accepted.doing("waiting for a client"),
        }
    }
}

/// Follows one client's orders until it hangs up. Returns how many tests there were.
fn serve(control: &mut Control, choice: &DeviceChoice) -> Result<u64, Failure> {
    greet(control)?;
    let mut tests = 0;
    let mut link = None;
    let mut pages = None;
    while let Some(order) = control.receive_or_end(PATIENCE)? {
        match order {
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
            Order::Hello { .. } | Order::Stop => {
                return Err(Failure::Failed(format!("an order out of turn: {order:?}")));
            }
        }
        tests += 1;
    }
    Ok(tests)
}

/// Exchanges the first lines.
fn greet(control: &mut Control) -> Result<(), Failure> {
    let order = control.receive(HELLO_TIME)?;
    let Order::Hello { protocol, pin } = order else {
        return Err(Failure::Failed(format!("an order before the greeting: {order:?}")));
    };
    if protocol != PROTOCOL {
        return Err(Failure::Failed(format!(
            "this server speaks {PROTOCOL}, the client {protocol}: use the same version of adverb"
        )));
    }
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

/// How long a stranger may hold the only place without a word.
const HELLO_TIME: Duration = Duration::from_secs(5);
/// How long a client may take between two orders: it may be measuring something by itself.
const PATIENCE: Duration = Duration::from_secs(60);
const _: () = assert!(PATIENCE.as_secs() > ANSWER_TIME.as_secs());
