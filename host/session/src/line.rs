//! What lasts of an endpoint while its links come and go, and how a client comes back to its server.
//!
//! A link (`link.rs`) is one connection; the channels and the endpoint hold the line and ask it for
//! the link of the moment. When the keeper finds that a link has ended, and the settings say so, a
//! thread tries to connect again. Each channel gets a new queue pair then, on the completion queue
//! that it has, and goes on: what was in flight has ended before, once.
//!
//! Locks: a channel's may be held when the line's is taken, never the other way round.

use crate::adapter::Adapter;
use crate::auth;
use crate::channel::{Channel, Shared};
use crate::client::ClientSession;
use crate::config::Reconnect;
use crate::connector::{Deadline, system};
use crate::endpoint::Endpoint;
use crate::error::{ChannelError, ConnectError, SetUpError};
use crate::handler::Handler;
use crate::link::{Departure, Link};
use crate::set_up;
use adverb_verbs::locks::Mutex;
use std::net::SocketAddr;
use std::sync::{Arc, Condvar, OnceLock, PoisonError, Weak};
use std::thread;
use std::time::Duration;
use tracing::{info, warn};

/// What lasts of an endpoint.
#[derive(Debug)]
pub(crate) struct Line {
    adapter: Adapter,
    /// Where it connected to, if it is a client's.
    server: Option<SocketAddr>,
    channels: OnceLock<Vec<Weak<Shared>>>,
    state: Mutex<State>,
    /// Changes of `state`.
    changed: Condvar,
    pause: Arc<Pause>,
}

#[derive(Debug)]
struct State {
    link: Arc<Link>,
    stage: Stage,
}

/// Where a line stands.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Stage {
    /// There is a link, or there was one until just now.
    Up,
    /// There is none, and a thread tries to connect again.
    Trying,
    /// There will be none any more.
    Over,
}

impl Line {
    pub(crate) fn new(adapter: &Adapter, link: Arc<Link>, server: Option<SocketAddr>) -> Arc<Self> {
        let line = Arc::new(Self {
            adapter: adapter.clone(),
            server,
            channels: OnceLock::new(),
            state: Mutex::new(State { link: Arc::clone(&link), stage: Stage::Up }),
            changed: Condvar::new(),
            pause: Arc::default(),
        });
        link.set_line(Arc::downgrade(&line));
        line
    }

    /// Tells which channels it has. Once.
    pub(crate) fn set_channels(&self, channels: Vec<Weak<Shared>>) {
        let _ = self.channels.set(channels);
    }

    pub(crate) fn channels(&self) -> &[Weak<Shared>] {
        self.channels.get().map(Vec::as_slice).unwrap_or_default()
    }

    /// The link of the moment; the last one, if there is none.
    pub(crate) fn link(&self) -> Arc<Link> {
        Arc::clone(&self.state.lock().link)
    }

    /// Where it connected to, if it is a client's.
    pub(crate) fn server(&self) -> Option<SocketAddr> {
        self.server
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn stage(&self) -> Stage {
        self.state.lock().stage
    }

    /// Has the device take in and answer all that has arrived.
    pub(crate) fn catch_up(&self) {
        self.adapter.context().settle();
    }

    /// Says goodbye, and does not come back.
    pub(crate) fn close(&self) {
        self.set_over();
        self.link().close();
    }

    fn set_over(&self) {
        self.pause.end();
        self.state.lock().stage = Stage::Over;
        self.changed.notify_all();
        for channel in self.channels().iter().filter_map(Weak::upgrade) {
            channel.wake();
        }
    }

    /// Waits until there is a link with a peer.
    pub(crate) fn wait_until_up(&self, timeout: Duration) -> Result<(), ChannelError> {
        let deadline = Deadline::after(timeout);
        let mut state = self.state.lock();
        loop {
            let departure = state.link.departure();
            match (state.stage, departure) {
                (Stage::Up, None) => return Ok(()),
                (Stage::Over, how) => {
                    return Err(ChannelError::PeerGone(how.unwrap_or(Departure::Here)));
                }
                (Stage::Up, Some(_)) | (Stage::Trying, _) => {}
            }
            if deadline.has_passed() {
                return Err(ChannelError::Timeout { waited: timeout });
            }
            let waited = self.changed.wait_timeout(state, deadline.left());
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// The peer of link `number` is gone, and all channels have ended. Called by the keeper.
    pub(crate) fn lost(self: &Arc<Self>, number: u32, how: Departure) {
        let policy = self.adapter.config().reconnect.filter(|policy| policy.covers(how));
        let mut state = self.state.lock();
        if state.stage != Stage::Up || state.link.number() != number {
            return;
        }
        state.stage = Stage::Trying;
        drop(state);
        let started = policy.zip(self.server).is_some_and(|(policy, server)| {
            let (line, pause) = (Arc::downgrade(self), Arc::clone(&self.pause));
            let thread = thread::Builder::new().name("adverb-reconnect".to_owned());
            thread.spawn(move || come_back(&line, &pause, policy, server)).is_ok()
        });
        if !started {
            self.set_over();
        }
    }

    /// Tries once to have a link again.
    fn try_once(self: &Arc<Self>, server: SocketAddr) -> Result<(), ConnectError> {
        let channels: Vec<_> = self.channels().iter().filter_map(Weak::upgrade).collect();
        let session = ClientSession::on(self.adapter.clone());
        let make = |adapter: &Adapter| {
            let again = |channel: &Arc<Shared>| set_up::make_again(adapter, channel);
            channels.iter().map(again).collect()
        };
        let deadline = Deadline::after(self.adapter.config().timeouts.connect);
        let met = session.meet(server, deadline, &make)?;
        let old = self.link();
        let link =
            Arc::new(Link::new(met.peer, met.connector, old.number().wrapping_add(1).max(1)));
        link.set_line(Arc::downgrade(self));
        let failed = |error| ConnectError::Handshake { to: server, error };
        self.adapter.keep(&link).map_err(system("look after the connection")).map_err(failed)?;
        for (channel, unlinked) in channels.iter().zip(met.channels) {
            channel.revive(unlinked, link.number());
        }
        let mut state = self.state.lock();
        if state.stage == Stage::Over {
            drop(state);
            link.close();
            return Ok(());
        }
        *state = State { link: Arc::clone(&link), stage: Stage::Up };
        drop(state);
        info!(peer = %link.peer.addr, name = %link.peer.name, "connected again");
        for (name, buffer) in old.advertised() {
            // A peer that cannot be told has gone again, which the keeper notices.
            let told =
                link.advertise(name.as_str(), &buffer, self.adapter.config().timeouts.change());
            if let Err(error) = told {
                warn!(%name, "a buffer could not be advertised again: {error}");
            }
        }
        self.welcome(&channels);
        // What has been read with the end of the handshake, or came before the channels were new.
        link.attend();
        self.changed.notify_all();
        for channel in &channels {
            channel.wake();
        }
        Ok(())
    }

    /// Tells handlers that the peer is there again.
    fn welcome(self: &Arc<Self>, channels: &[Arc<Shared>]) {
        let mut told: Vec<Arc<dyn Handler>> = Vec::new();
        let all: Vec<_> = channels.iter().cloned().map(Channel::of).collect();
        let endpoint = Endpoint::of(all, Arc::clone(self), &self.adapter);
        for handler in channels.iter().filter_map(|channel| channel.handler()) {
            if !told.iter().any(|known| Arc::ptr_eq(known, handler)) {
                handler.established(&endpoint);
                told.push(Arc::clone(handler));
            }
        }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.pause.end();
    }
}

/// Tries to have a link again, as often as `policy` says.
fn come_back(line: &Weak<Line>, pause: &Pause, policy: Reconnect, server: SocketAddr) {
    for attempt in 0..policy.attempts {
        if pause.take(spread(policy.pause_before(attempt))) {
            return;
        }
        let Some(line) = line.upgrade() else {
            return;
        };
        match line.try_once(server) {
            Ok(()) => return,
            Err(error) => {
                warn!(%server, attempt = attempt + 1, of = policy.attempts, "{error}");
                // What keeps packets apart may pass, as what kept the two sides apart did.
                let is_apart =
                    matches!(error, ConnectError::SetUp { error: SetUpError::Unanswered(_), .. });
                if error.is_final() && !is_apart {
                    break;
                }
            }
        }
    }
    if let Some(line) = line.upgrade() {
        line.set_over();
    }
}

/// From half of a pause to all of it, so that clients that lost the same server do not come at once.
fn spread(pause: Duration) -> Duration {
    let [byte, ..] = auth::nonce().unwrap_or_default();
    pause / 2 + pause / 2 * u32::from(byte) / u32::from(u8::MAX)
}

/// A pause that can be ended for good.
#[derive(Debug, Default)]
struct Pause {
    ended: Mutex<bool>,
    rung: Condvar,
}

impl Pause {
    /// Pauses; true if it was ended.
    fn take(&self, pause: Duration) -> bool {
        let ended = self.ended.lock();
        let waited = self.rung.wait_timeout_while(ended, pause, |ended| !*ended);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }

    fn end(&self) {
        *self.ended.lock() = true;
        self.rung.notify_all();
    }
}
