//! A server that runs: a thread of its own accepts clients, and a handler is told of what they do.

use crate::connector::Deadline;
use crate::endpoint::Endpoint;
use crate::error::AcceptError;
use crate::handler::Handler;
use crate::server::{Next, ServerSession};
use adverb_sys::eventfd::EventFd;
use adverb_verbs::locks::Mutex;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use tracing::warn;

/// A server that runs. Dropping it stops it.
///
/// [`Handler`] has an example.
pub struct Service {
    shared: Arc<Shared>,
    local_addr: SocketAddr,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    bell: Arc<EventFd>,
    stopped: AtomicBool,
    endpoints: Mutex<Vec<Endpoint>>,
    handler: Arc<dyn Handler>,
}

impl fmt::Debug for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Service").field("local_addr", &self.local_addr).finish_non_exhaustive()
    }
}

impl ServerSession {
    /// Accepts clients on a thread of its own, as long as the service lives, and hands what happens to
    /// `handler`. A client that is gone, killed or silent is forgotten; the others go on.
    ///
    /// # Errors
    ///
    /// No thread was started.
    pub fn serve(mut self, handler: Arc<dyn Handler>) -> io::Result<Service> {
        let shared = Arc::new(Shared {
            bell: self.bell()?,
            stopped: AtomicBool::new(false),
            endpoints: Mutex::default(),
            handler,
        });
        let local_addr = self.local_addr();
        let worker = Arc::clone(&shared);
        let thread = thread::Builder::new()
            .name("adverb-server".to_owned())
            .spawn(move || worker.run(&mut self))?;
        Ok(Service { shared, local_addr, thread: Some(thread) })
    }
}

impl Service {
    /// Where it listens.
    pub const fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// The clients that are there.
    pub fn endpoints(&self) -> Vec<Endpoint> {
        let here = |endpoint: &&Endpoint| endpoint.departure().is_none();
        self.shared.endpoints.lock().iter().filter(here).cloned().collect()
    }

    /// Stops accepting, and closes all endpoints, each of them once what was posted is done. All together
    /// have the time that one [`Endpoint::close`] has; whatever is not done then is left behind. A
    /// [`Handler::established`] that still runs is not waited for.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.shared.stopped.store(true, Ordering::Release);
        let _ = self.shared.bell.signal();
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != thread::current().id()
        {
            let _ = thread.join();
        }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.end();
    }
}

impl Shared {
    fn run(self: &Arc<Self>, server: &mut ServerSession) {
        while !self.stopped.load(Ordering::Acquire) {
            match server.next(None) {
                Next::Came(endpoint) => self.welcome(endpoint),
                // The listener itself has failed: wait for better times, but not without rest.
                Next::Refused(error @ AcceptError::Listen { .. }) => {
                    self.handler.refused(&error);
                    thread::sleep(REST);
                }
                Next::Refused(error) => self.handler.refused(&error),
                Next::Bell => {}
                Next::Timeout => {}
            }
            self.endpoints.lock().retain(|endpoint| !endpoint.is_quiet());
        }
        let endpoints = std::mem::take(&mut *self.endpoints.lock());
        // All of them at once, so that the slowest alone is waited for.
        endpoints.iter().for_each(Endpoint::nudge);
        let deadline = Deadline::after(server.config().timeouts.change());
        for endpoint in endpoints {
            // A peer that does not take what it was sent is not waited for.
            let _ = endpoint.close_by(&deadline);
        }
    }

    /// Lets a peer in, on a thread of its own: the program's part may take long.
    fn welcome(self: &Arc<Self>, endpoint: Endpoint) {
        endpoint.ring_when_gone(&self.bell);
        self.endpoints.lock().push(endpoint.clone());
        let welcome = Welcome { shared: Arc::clone(self), endpoint, is_served: false };
        // Without threads nothing can be served: the end of the connection tells the client.
        let started =
            thread::Builder::new().name("adverb-welcome".to_owned()).spawn(move || welcome.run());
        if let Err(error) = started {
            warn!(%error, "no thread for a peer that has come");
        }
    }
}

/// A peer that is being let in. It is sent away if that does not succeed.
struct Welcome {
    shared: Arc<Shared>,
    endpoint: Endpoint,
    is_served: bool,
}

impl Welcome {
    fn run(mut self) {
        self.shared.handler.established(&self.endpoint);
        match self.endpoint.handle(Arc::clone(&self.shared.handler)) {
            Ok(()) => self.is_served = true,
            Err(error) => warn!(%error, "no thread for the events of a peer that has come"),
        }
    }
}

impl Drop for Welcome {
    fn drop(&mut self) {
        if !self.is_served {
            self.shared.endpoints.lock().retain(|known| !known.is(&self.endpoint));
        }
    }
}

const REST: std::time::Duration = std::time::Duration::from_millis(100);
