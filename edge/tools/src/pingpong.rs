//! `adverb pingpong`: exchanges messages with a peer and checks every byte.
//!
//! The server is that of `adverb bench`, with another order to follow. The client decides what goes
//! there, and knows what must come back.

use crate::args::{Op, PingpongArgs};
use crate::bench::control::{Order, Watch};
use crate::bench::local::LocalServer;
use crate::bench::measure::{Layout, Pattern};
use crate::bench::plan::Tuning;
use crate::bench::rdma::{self, DeviceChoice};
use crate::bench::server::{self, ServerOptions};
use crate::bench::{LOCAL_DEVICE, client, stats};
use crate::failure::{Doing, Failure};

/// Runs the subcommand.
pub(crate) fn run(args: &PingpongArgs) -> Result<(), Failure> {
    let mut choice = DeviceChoice { device: args.device.clone(), gid_index: args.gid_index };
    if args.server {
        let (bind, port, child) = (args.bind, args.port, false);
        return server::run(&ServerOptions { bind, port, choice, child });
    }
    if args.host.is_none() {
        choice.device.get_or_insert_with(|| LOCAL_DEVICE.to_owned());
    }
    choice.check()?;
    match &args.host {
        Some(host) => exchange(host, args.port, &choice, args),
        None => {
            let server = LocalServer::start(&choice, None)?;
            exchange("127.0.0.1", server.port, &choice, args)
        }
    }
}

/// The client's whole run against a server at `host`.
fn exchange(
    host: &str,
    port: u16,
    choice: &DeviceChoice,
    args: &PingpongArgs,
) -> Result<(), Failure> {
    let length = usize::try_from(args.size).doing("allocating a message")?;
    let layout = Layout::new(length, RECEIVES);
    let tuning = Tuning { mtu: args.mtu, tx_depth: TX_DEPTH, inline_bytes: 0, layout };
    let mut control = client::greet(host, port, true)?;
    let mut link = rdma::connect(&mut control, choice, &tuning)?;
    control.start(&Order::Run { pattern: Pattern::EchoBytes, bytes: args.size })?;
    let samples = link.checked_round_trips(length, args.iters, &mut Watch::new(&mut control))?;
    control.stop()?;
    let half = samples.percentiles().halved();
    let [p50, p99] = [half.p50, half.p99].map(|ns| stats::to_f64(ns) / 1e3);
    println!(
        "{} {}s of {} bytes there and back, every byte right; half a round trip {p50:.2} µs (99 % {p99:.2})",
        args.iters,
        Op::Send,
        args.size,
    );
    Ok(())
}

/// Receives posted: one message is on its way at a time.
const RECEIVES: u32 = 16;
/// Requests in the send queue, for the same reason.
const TX_DEPTH: u32 = 16;
