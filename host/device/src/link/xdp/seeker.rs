//! The seeker: a thread that looks for the next owner of an interface when the last one has ended or had no queue free, and lets
//! go of one that no address has need of.
//!
//! An owner may take long to answer, and the threads that send and receive are not to wait. It begins with the first address that
//! has frames, sleeps while there is nothing to look for, and ends with the port.

use crate::link::gid::Device;
use crate::link::udp::endpoint::Endpoint;
use crate::link::xdp::{XdpLink, ask};
use crate::sync::Mutex;
use adverb_sys::fork::Generation;
use adverb_sys::poll;
use adverb_xdp::interface::QUEUE_PATIENCE;
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;
use tracing::{debug, info};

/// The thread, seen from the port.
#[derive(Debug)]
pub(crate) struct Seeker {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    generation: Generation,
}

#[derive(Debug)]
struct Shared {
    link: Arc<XdpLink>,
    device: Device,
    /// The addresses that have had frames.
    endpoints: Mutex<Vec<Weak<Endpoint>>>,
    stop: AtomicBool,
}

impl Seeker {
    pub(crate) fn start(link: &Arc<XdpLink>, device: &Device) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            link: Arc::clone(link),
            device: device.clone(),
            endpoints: Mutex::default(),
            stop: AtomicBool::new(false),
        });
        let ours = Arc::clone(&shared);
        let thread = adverb_sys::signals::spawn("adverb-seeker", move || ours.run())?;
        Ok(Self { shared, thread: Some(thread), generation: Generation::now() })
    }

    /// This address is to have frames by the next owner, too.
    pub(crate) fn add(&self, endpoint: &Arc<Endpoint>) {
        let mut endpoints = self.shared.endpoints.lock();
        endpoints.retain(|known| known.strong_count() > 0);
        endpoints.push(Arc::downgrade(endpoint));
        drop(endpoints);
        let _ = self.shared.link.bell.signal();
    }
}

impl Drop for Seeker {
    fn drop(&mut self) {
        if self.generation.is_inherited() {
            return; // The thread is the parent's.
        }
        self.shared.stop.store(true, Ordering::Release);
        let _ = self.shared.link.bell.signal();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn run(&self) {
        let mut wait = PAUSE;
        while !self.stop.load(Ordering::Acquire) {
            let (is_over, is_needed) = (self.link.is_over(), !self.claimants().is_empty());
            // What is on its way still as frames is given the time, too.
            let pause = (is_over == is_needed).then_some(wait);
            match poll::readable(&self.link.bell, std::iter::empty(), pause) {
                Ok(true) => {
                    let _ = self.link.bell.drain();
                    wait = PAUSE;
                }
                Ok(false) if is_over => {
                    let sought = self.seek();
                    wait = match sought.as_ref().map_err(io::Error::kind) {
                        Ok(()) => PAUSE,
                        Err(io::ErrorKind::TimedOut) => SILENCE,
                        // A refusal may last.
                        Err(_) => (wait * 2).min(SILENCE),
                    };
                    if let Err(error) = sought {
                        debug!(device = %self.device.name, "no frames yet: {error}");
                    }
                }
                Ok(false) => self.link.leave(),
                Err(_) => return,
            }
        }
    }

    /// The addresses whose packets are to come as frames.
    fn claimants(&self) -> Vec<Arc<Endpoint>> {
        let endpoints = self.endpoints.lock();
        let all = endpoints.iter().filter_map(Weak::upgrade);
        all.filter(|endpoint| endpoint.has_claim()).collect()
    }

    /// Asks the owner of the interface, if there is one. Where that has no queue free it is asked once more: it keeps those of a
    /// user without programs until another one asks, and the kernel needs a moment to let go of them.
    fn seek(&self) -> io::Result<()> {
        let is_busy = |error: &io::Error| error.kind() == io::ErrorKind::ResourceBusy;
        let mut asked = ask(&self.device, Duration::ZERO);
        if asked.as_ref().is_err_and(is_busy)
            && !poll::readable(&self.link.bell, std::iter::empty(), Some(QUEUE_PATIENCE))?
        {
            asked = ask(&self.device, Duration::ZERO);
        }
        let Some((membership, sockets)) = asked? else { return Ok(()) };
        self.link.renew(membership, sockets)?;
        for endpoint in self.claimants() {
            if self.stop.load(Ordering::Acquire) {
                break;
            }
            let claimed = self.link.claim(endpoint.addr, endpoint.socket.as_fd(), false);
            let (device, address) = (&self.device.name, endpoint.addr.ip());
            match claimed {
                Ok(_) => info!(%device, %address, "frames by the owner"),
                Err(error) if is_gone(&error) => {
                    self.link.leave(); // The next one is asked.
                    return Err(error);
                }
                Err(error) => {
                    info!(%device, %address, "no frames: {error}");
                    endpoint.lose_claim();
                }
            }
            // It may have been given back meanwhile.
            if !endpoint.has_claim() {
                self.link.release(endpoint.addr);
            }
        }
        Ok(())
    }
}

/// An owner has ended, or does not answer: it has not refused.
fn is_gone(error: &io::Error) -> bool {
    use io::ErrorKind::{
        BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected, TimedOut, UnexpectedEof,
    };
    [BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected, TimedOut, UnexpectedEof]
        .contains(&error.kind())
}

/// From one question to the next, and before the first one.
const PAUSE: Duration = Duration::from_secs(1);
/// The same after one that was not answered in time, and at most after several that were refused.
const SILENCE: Duration = Duration::from_secs(10);
