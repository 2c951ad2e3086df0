//! Tests of memberships, with an owner that says what it is to say.
//!
//! # Safety
//!
//! 1. A handler does nothing.
//! 2. A thread that gets a signal is in a scope that has not ended.

use super::*;
use crate::steering::Protocol;
use crate::umem::Shape;
use adverb_sys::memory::Mapping;
use adverb_sys::unix::Listener;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

fn pair(name: &str) -> (Membership, Stream) {
    let name = format!("adverb-xdp-{name}-{}", std::process::id());
    let listener = Listener::bind(name.as_bytes()).unwrap();
    let stream = Stream::connect(name.as_bytes()).unwrap();
    let (pages, _) = Mapping::memfd("gates", 1).unwrap();
    let umem = Arc::new(Umem::private(Shape { frames: 1, frame_bytes: 2048 }).unwrap());
    let member = Membership { stream, gates: Gates::over(pages), umem, turn: Mutex::new(()) };
    (member, listener.accept().unwrap())
}

fn key(port: u16) -> Key {
    let local = ([10, 0, 0, 1], port).into();
    Key { protocol: Protocol::Udp, local, remote: None }
}

/// Goal: an answer that comes too late is not taken for the next question's.
#[test]
fn a_membership_ends_when_the_owner_does_not_answer() {
    let (member, owner) = pair("late");
    assert_eq!(member.release(key(1)).unwrap_err().kind(), io::ErrorKind::TimedOut);
    let _ = grant::answer(&owner, Ok(()));
    assert!(member.has_ended());
    assert!(member.release(key(1)).is_err());
    let (mut bytes, mut fds) = ([0; 64], Vec::new());
    assert_eq!(owner.recv(&mut bytes, &mut fds).unwrap(), Request::LEN);
    assert_eq!(owner.recv(&mut bytes, &mut fds).unwrap(), 0);
}

/// Goal: threads that ask at once each get their own answers, and another that looks takes none for the owner's end. Method:
/// the owner refuses odd ports.
#[test]
fn threads_get_their_own_answers() {
    let (member, owner) = pair("turns");
    let asking = AtomicU32::new(2);
    std::thread::scope(|scope| {
        for odd in [0, 1] {
            let (member, asking) = (&member, &asking);
            scope.spawn(move || {
                for n in 0..500 {
                    assert_eq!(member.release(key(2 * n + odd)).is_err(), odd == 1);
                }
                asking.fetch_sub(1, Ordering::Relaxed);
            });
        }
        scope.spawn(|| {
            while asking.load(Ordering::Relaxed) > 0 {
                assert!(!member.has_ended());
            }
        });
        for _ in 0..1000 {
            if !poll::readable(&owner, std::iter::empty(), Some(2 * PATIENCE)).unwrap() {
                break; // Threads that have failed ask nothing.
            }
            let mut bytes = [0; Request::LEN];
            owner.recv(&mut bytes, &mut Vec::new()).unwrap();
            let Some(Request::Release(key)) = Request::parse(&bytes) else { panic!() };
            let odd = key.local.port() % 2 == 1;
            let result = if odd { Err(io::ErrorKind::InvalidInput.into()) } else { Ok(()) };
            grant::answer(&owner, result).unwrap();
        }
    });
}

/// Goal: a signal while the owner answers ends nothing.
#[test]
fn a_signal_does_not_end_a_question() {
    extern "C" fn nothing(_: libc::c_int) {}
    let (member, owner) = pair("signal");
    let handler: extern "C" fn(libc::c_int) = nothing;
    #[expect(clippy::as_conversions, reason = "the C library takes a function as a number")]
    let handler = handler as libc::sighandler_t;
    // SAFETY: a function that does nothing (rule 1).
    unsafe { libc::signal(libc::SIGUSR1, handler) };
    let asker = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let question = scope.spawn(|| {
            // SAFETY: no pointer.
            asker.store(unsafe { libc::pthread_self() }, Ordering::Release);
            member.release(key(1))
        });
        assert!(poll::readable(&owner, std::iter::empty(), Some(2 * PATIENCE)).unwrap());
        for _ in 0..5 {
            std::thread::sleep(Duration::from_millis(20));
            // SAFETY: the thread waits in this scope for an answer (rule 2).
            unsafe { libc::pthread_kill(asker.load(Ordering::Acquire), libc::SIGUSR1) };
        }
        grant::answer(&owner, Ok(())).unwrap();
        question.join().unwrap().unwrap();
    });
    assert!(!member.has_ended());
}
