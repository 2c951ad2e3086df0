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
    let (gates, mode) = (Gates::over(pages), XdpMode::Native);
    let (talk, owed) = (Mutex::default(), Mutex::default());
    let member = Membership { stream, gates, mode, umem, talk, owed };
    (member, listener.accept().unwrap())
}

fn key(port: u16) -> Key {
    let local = ([10, 0, 0, 1], port).into();
    Key { protocol: Protocol::Udp, local, remote: None }
}

/// The next question.
fn heard(owner: &Stream) -> Question {
    assert!(poll::readable(owner, std::iter::empty(), Some(2 * PATIENCE)).unwrap());
    let mut bytes = [0; Question::LEN];
    owner.recv(&mut bytes, &mut Vec::new()).unwrap();
    Question::parse(&bytes).unwrap()
}

/// Goal: an owner that does not answer costs one wait, and no membership: nothing else is asked until it does, late answers are
/// taken for no others', and what was to be released is.
#[test]
fn an_owner_that_does_not_answer_is_asked_nothing_until_it_does() {
    let (member, owner) = pair("late");
    let error = |result: io::Result<()>| result.unwrap_err().kind();
    assert_eq!(error(member.repair(key(1), true)), io::ErrorKind::TimedOut);
    let began = clock::now_ns();
    assert_eq!(error(member.claim(key(2), &owner)), io::ErrorKind::TimedOut);
    assert_eq!(error(member.release(key(3))), io::ErrorKind::TimedOut);
    assert!(clock::now_ns() - began < nanoseconds(PATIENCE), "it waits for every question");
    assert!(!member.has_ended());
    let Question { number, until_ns, request } = heard(&owner);
    assert_eq!((request, until_ns < clock::now_ns()), (Request::Repair(key(1), true), true));
    assert!(!poll::readable(&owner, std::iter::empty(), Some(Duration::ZERO)).unwrap());
    grant::answer(&owner, number, &Err(io::ErrorKind::TimedOut.into())).unwrap();
    assert!(!member.has_ended());
    let released = heard(&owner);
    assert_eq!(released.request, Request::Release(key(3)));
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| member.claim(key(4), &owner));
        let next = heard(&owner);
        assert_eq!(next.request, Request::Claim(key(4), None));
        grant::answer(&owner, released.number, &Err(io::ErrorKind::InvalidInput.into())).unwrap();
        grant::answer(&owner, next.number, &Ok(())).unwrap();
        asked.join().unwrap().unwrap();
    });
    assert!(!member.has_ended());
}

/// Goal: what an owner has done and not said in time is undone if it was claimed, and ends no membership, whatever it was.
#[test]
fn an_owner_that_says_late_what_it_has_done_goes_on() {
    for (request, is_undone) in [
        (Request::Claim(key(1), None), true),
        (Request::Repair(key(1), true), false),
        (Request::Repair(key(1), false), false),
        (Request::Release(key(1)), false),
    ] {
        let (member, owner) = pair("done");
        let fds: &[_] = if is_undone { &[owner.as_fd()] } else { &[] };
        assert_eq!(member.request(request, fds).unwrap_err().kind(), io::ErrorKind::TimedOut);
        grant::answer(&owner, heard(&owner).number, &Ok(())).unwrap();
        assert!(!member.has_ended(), "{request:?}");
        if is_undone {
            let next = heard(&owner);
            assert_eq!(next.request, Request::Release(key(1)));
            grant::answer(&owner, next.number, &Ok(())).unwrap();
        }
        assert!(!member.has_ended(), "{request:?}");
        assert!(!poll::readable(&owner, std::iter::empty(), Some(Duration::ZERO)).unwrap());
    }
}

/// Goal: what is let go of without waiting keeps no thread, whether the owner is silent or a thread asks it something; the owner
/// hears of all of it, and before what it is asked later.
#[test]
fn what_is_released_soon_waits_for_no_answer() {
    let (member, owner) = pair("soon");
    let is_asking = AtomicU32::new(1);
    let next = || {
        let Question { number, request, .. } = heard(&owner);
        grant::answer(&owner, number, &Ok(())).unwrap();
        request
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            member.claim(key(1), &owner).unwrap();
            is_asking.store(0, Ordering::Release);
        });
        assert!(poll::readable(&owner, std::iter::empty(), Some(2 * PATIENCE)).unwrap());
        (2..100).for_each(|port| member.release_soon(key(port)));
        assert_eq!(is_asking.load(Ordering::Acquire), 1, "it has waited");
        assert_eq!(next(), Request::Claim(key(1), None));
        let released = (2..100).map(|_| match next() {
            Request::Release(key) => key.local.port(),
            Request::Claim(..) | Request::Repair(..) => panic!("nothing else is asked"),
        });
        let mut ports: Vec<_> = released.collect();
        ports.sort_unstable();
        assert_eq!(ports, (2..100).collect::<Vec<_>>());
    });
    member.release_soon(key(7));
    std::thread::scope(|scope| {
        scope.spawn(|| member.claim(key(7), &owner).unwrap());
        assert_eq!(next(), Request::Release(key(7)));
        assert_eq!(next(), Request::Claim(key(7), None));
    });
    assert!(!member.has_ended());
}

/// Goal: an owner whose answers are to nothing is none.
#[test]
fn an_answer_that_makes_no_sense_ends_the_membership() {
    let (member, owner) = pair("none");
    grant::answer(&owner, 7, &Ok(())).unwrap();
    assert!(member.has_ended() && member.release(key(1)).is_err());
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
            let Question { number, request: Request::Release(key), .. } = heard(&owner) else {
                panic!()
            };
            let odd = key.local.port() % 2 == 1;
            let result = if odd { Err(io::ErrorKind::InvalidInput.into()) } else { Ok(()) };
            grant::answer(&owner, number, &result).unwrap();
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
        grant::answer(&owner, heard(&owner).number, &Ok(())).unwrap();
        question.join().unwrap().unwrap();
    });
    assert!(!member.has_ended());
}
