//! Collectives: what comes of them is what one program would have computed.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::as_conversions,
    reason = "a test may fail"
)]

#[allow(dead_code, reason = "each test file uses a part of it")]
mod support;

use adverb_session::{
    ClientSession, Config, Group, GroupError, Messenger, MessengerConfig, Number, Reduction,
    ServerSession, Topology, WorkMode,
};
use std::sync::{Arc, Mutex};
use std::thread;
use support::LONG;

/// Runs `member` in a thread for each member of a group.
fn group(size: usize, member: impl Fn(Group) + Send + Sync + 'static) {
    let config = Config::default().work_mode(WorkMode::Epoll);
    let servers: Vec<_> = (0..size)
        .map(|_| ServerSession::bind("127.0.0.1:0", config.clone()).expect("a server"))
        .collect();
    let addresses: Vec<_> = servers.iter().map(ServerSession::local_addr).collect();
    let member = Arc::new(member);
    let threads: Vec<_> = (0..size)
        .zip(servers)
        .map(|(rank, mut server)| {
            let (member, addresses) = (Arc::clone(&member), addresses.clone());
            thread::spawn(move || {
                // To those before it it connects; those after it come.
                let mut peers: Vec<Option<Messenger>> = (0..size).map(|_| None).collect();
                let open = |endpoint: &adverb_session::Endpoint| {
                    let messenger = Messenger::open(endpoint, "data", MessengerConfig::default());
                    Some(messenger.expect("a messenger").with_timeout(LONG))
                };
                let config = server.adapter().config().clone().name(format!("{rank}"));
                let session = ClientSession::new(config).expect("a client");
                for (before, address) in addresses.iter().enumerate().take(rank) {
                    peers[before] = open(&session.connect(address).expect("an endpoint"));
                }
                for _ in rank + 1..size {
                    let endpoint = server.accept(LONG).expect("an endpoint");
                    let from: usize = endpoint.peer().name.as_str().parse().expect("a rank");
                    peers[from] = open(&endpoint);
                }
                let mut group = Group::new(rank, peers).expect("a group");
                group.barrier().expect("all are there");
                member(group);
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
}

/// Number `place` of member `rank`.
fn value(rank: usize, place: usize) -> i32 {
    let mixed = (rank * 7919 + place).wrapping_mul(2_654_435_761) >> 7;
    i32::try_from(mixed % 20_001).expect("small") - 10_000
}

/// Goal: every member has the same bits, which for integers are those of one program in any order,
/// and for floating point those of one program in the order of the topology.
#[test]
fn allreduce_is_what_one_program_computes() {
    for size in [2, 3, 5] {
        let topologies = [
            Topology::Auto,
            Topology::Mesh,
            Topology::Ring,
            Topology::Tree { width: 1 },
            Topology::Tree { width: 2 },
        ];
        let floats: Arc<Mutex<Vec<Vec<u32>>>> = Arc::default();
        let seen = Arc::clone(&floats);
        group(size, move |mut group| {
            let rank = group.rank();
            for topology in topologies {
                group = group.topology(topology);
                for len in [0, 1, 4, 1000, 30_000] {
                    for how in [Reduction::Sum, Reduction::Min, Reduction::Max] {
                        let mut data: Vec<i32> = (0..len).map(|at| value(rank, at)).collect();
                        group.allreduce(&mut data, how).unwrap();
                        for (at, result) in data.into_iter().enumerate() {
                            let all = (0..size).map(|rank| value(rank, at));
                            let due = all.reduce(|a, b| a.reduce(b, how)).unwrap();
                            assert_eq!(result, due, "{topology:?} {how:?} {at} of {len}");
                        }
                    }
                }
                let number =
                    |at| f32::from(u16::try_from(value(rank, at).rem_euclid(9999)).unwrap());
                let mut data: Vec<f32> = (0..999).map(|at| 1.0 / (number(at) + 0.1)).collect();
                group.allreduce(&mut data, Reduction::Sum).unwrap();
                let bits = data.iter().map(|number| number.to_bits()).collect();
                seen.lock().unwrap().push(bits);
                group.barrier().unwrap();
                if rank == 0 {
                    let all = std::mem::take(&mut *seen.lock().unwrap());
                    assert!(all.windows(2).all(|two| two[0] == two[1]), "{topology:?}");
                }
                group.barrier().unwrap();
            }
        });
        assert!(floats.lock().unwrap().is_empty());
    }
}

#[test]
fn vectors_are_broadcast_gathered_and_scattered() {
    for size in [2, 4] {
        group(size, move |mut group| {
            let rank = group.rank();
            for topology in [Topology::Auto, Topology::Ring, Topology::Mesh] {
                group = group.topology(topology);
                for root in 0..size {
                    let mut data: Vec<i64> = (0..5000).map(|at| at * (rank as i64 + 1)).collect();
                    group.broadcast(root, &mut data).unwrap();
                    assert!((0..5000).all(|at| data[at as usize] == at * (root as i64 + 1)));
                }
            }
            let own = [rank as f64, 0.5];
            let mut all = vec![0.0; 2 * size];
            group.allgather(&own, &mut all).unwrap();
            for rank in 0..size {
                assert_eq!(all[2 * rank..2 * rank + 2], [rank as f64, 0.5]);
            }
            let mut data: Vec<i32> = (0..size * 10).map(|at| value(rank, at)).collect();
            let part = group.reduce_scatter(&mut data, Reduction::Sum).unwrap();
            assert_eq!(part, rank * 10..rank * 10 + 10);
            for at in part {
                assert_eq!(data[at], (0..size).map(|rank| value(rank, at)).sum::<i32>());
            }
            let mut uneven = vec![0_i32; size + 1];
            let error = group.reduce_scatter(&mut uneven, Reduction::Sum).unwrap_err();
            assert_eq!(error, GroupError::Uneven { len: size + 1, members: size });
        });
    }
}

#[test]
fn members_that_disagree_are_told() {
    group(2, |mut group| {
        let mut data = vec![0_i32; 3 + group.rank()];
        let error = group.allreduce(&mut data, Reduction::Sum).unwrap_err();
        let (rank, due) = (1 - group.rank(), data.len() * 4);
        assert_eq!(error, GroupError::Disagreement { rank, sent: 28 - due, due });
    });
}
