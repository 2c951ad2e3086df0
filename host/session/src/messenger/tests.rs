//! What a messenger keeps when memory or time is short.

use super::*;
use crate::{ClientSession, Config, ServerSession, WorkMode};

const LONG: Duration = Duration::from_secs(60);
const BYTES: usize = 16 << 20;

fn pair(config: Config) -> (Messenger, Messenger) {
    let mut server = ServerSession::bind("127.0.0.1:0", config.clone()).unwrap();
    let address = server.local_addr();
    let open = |endpoint: &Endpoint| {
        Messenger::open(endpoint, "data", MessengerConfig::default()).unwrap().with_timeout(LONG)
    };
    let other = thread::spawn(move || open(&server.accept(LONG).unwrap()));
    let client = ClientSession::new(config).unwrap().connect(address).unwrap();
    (open(&client), other.join().unwrap())
}

fn has_memory(messenger: &Messenger, has: bool) {
    messenger.inner.has_memory.store(has, Ordering::Relaxed);
}

fn landings(messenger: &Messenger) -> usize {
    messenger.inner.state.lock().landings.len()
}

/// Waits until so many messages wait at `messenger`.
fn await_waiting(messenger: &Messenger, count: usize) {
    let limit = Deadline::after(LONG);
    while messenger.window().waiting < count {
        assert!(!limit.has_passed(), "nothing has come");
        messenger.inner.progress().unwrap();
    }
}

/// Goal: a message for which there is no memory is there when there is.
#[test]
fn a_long_message_waits_until_there_is_memory_for_it() {
    let (client, server) = pair(Config::default());
    client.send(&[1; 100_000]).unwrap();
    client.send(b"after it").unwrap();
    has_memory(&server, false);
    for _ in 0..3 {
        assert_eq!(server.recv().unwrap_err(), MessageError::Memory { len: 100_000 });
    }
    assert_eq!(server.try_recv().unwrap_err(), MessageError::Memory { len: 100_000 });
    has_memory(&server, true);
    assert_eq!(server.recv().unwrap().to_vec(), [1; 100_000]);
    assert_eq!(server.recv().unwrap().to_vec(), b"after it");
    client.flush().unwrap();
}

/// Goal: calls that end while a message is read leave it, and its READ, for the next call.
#[test]
fn a_long_message_outlives_calls_that_run_out_of_time() {
    for mode in [WorkMode::BusyPoll, WorkMode::CompletionChannel] {
        let (client, server) = pair(Config::default().work_mode(mode));
        let hasty = server.with_timeout(Duration::ZERO);
        let target = server.endpoint().adapter().buffer(2, BYTES).unwrap();
        let block = target.at(0).unwrap();
        for into_block in [false, true] {
            client.send(&vec![7; BYTES]).unwrap();
            client.send(b"after it").unwrap();
            await_waiting(&server, 2);
            let (limit, mut gave_up) = (Deadline::after(LONG), 0);
            loop {
                assert!(!limit.has_passed(), "it never comes");
                let tried = match into_block {
                    true => hasty.recv_into(&block).map(|len| block.to_vec().len() == len),
                    false => hasty.recv().map(|message| message.to_vec() == vec![7; BYTES]),
                };
                match tried {
                    Ok(whole) => break assert!(whole),
                    Err(error) => assert!(matches!(error, MessageError::Timeout { .. }), "{error}"),
                }
                gave_up += 1;
                assert!(server.channel().in_flight().sends <= 3, "each call has a READ of its own");
            }
            assert!(gave_up > 0, "it took no time");
            assert!(!into_block || block.to_vec() == vec![7; BYTES]);
            assert_eq!(server.recv().unwrap().to_vec(), b"after it");
            client.flush().unwrap();
        }
        // Calls of another kind take over what one has left.
        client.send(&vec![8; BYTES]).unwrap();
        await_waiting(&server, 1);
        assert!(matches!(hasty.recv_into(&block), Err(MessageError::Timeout { .. })));
        assert!(server.recv().unwrap().to_vec() == vec![8; BYTES]);
        client.send(&vec![9; BYTES]).unwrap();
        await_waiting(&server, 1);
        assert!(matches!(hasty.recv(), Err(MessageError::Timeout { .. })));
        let other = target.at(1).unwrap();
        assert_eq!(server.recv_into(&other), Ok(BYTES));
        assert!(other.to_vec() == vec![9; BYTES]);
        client.flush().unwrap();
    }
}

/// Goal: a block that cannot take a message leaves it for one that can.
#[test]
fn a_block_that_may_not_be_written_costs_no_message() {
    let (client, server) = pair(Config::default());
    let adapter = server.endpoint().adapter();
    let closed = adapter.buffer_with(1, 200_000, Access::REMOTE_READ).unwrap().at(0).unwrap();
    let open = adapter.buffer(1, 200_000).unwrap().at(0).unwrap();
    for len in [10, 200_000] {
        client.send(&vec![3; len]).unwrap();
        assert_eq!(server.recv_into(&closed), Err(MessageError::NotWritable));
        assert_eq!(server.recv_into(&open), Ok(len));
        assert!(open.clone().first(len).unwrap().to_vec() == vec![3; len]);
    }
    client.flush().unwrap();
}

/// Goal: where there is no room no memory is asked for, and what was got is used again.
#[test]
fn a_long_message_without_room_takes_no_memory() {
    let (client, server) = pair(Config::default());
    let long = vec![4; 100_000];
    let mut sent = 0;
    while client.try_send(&long).unwrap() {
        sent += 1;
    }
    has_memory(&client, false);
    assert_eq!(client.try_send(&long), Ok(false));
    has_memory(&client, true);
    let hasty = client.with_timeout(Duration::ZERO);
    assert_eq!(landings(&client), 0);
    assert!(matches!(hasty.send(&long), Err(MessageError::Timeout { .. })));
    assert_eq!(landings(&client), 1);
    for _ in 0..sent {
        assert!(server.recv().unwrap().to_vec() == long);
    }
    client.flush().unwrap();
}

/// Goal: a block that was lent is the program's alone again, and not memory for a later message.
#[test]
fn a_block_that_was_lent_is_never_used_for_another_message() {
    let (client, server) = pair(Config::default());
    let access = Access::LOCAL_WRITE | Access::REMOTE_READ;
    let lent = client.endpoint().adapter().buffer_with(1, 100_000, access).unwrap();
    lent.fill(5).unwrap();
    let receiving = thread::spawn(move || {
        assert!(server.recv().unwrap().to_vec() == [5; 100_000]);
        server
    });
    client.send_block(&lent.at(0).unwrap()).unwrap();
    let server = receiving.join().unwrap();
    assert_eq!(landings(&client), 0);
    client.send(&[6; 100_000]).unwrap();
    assert!(server.recv().unwrap().to_vec() == [6; 100_000]);
    assert!(lent.at(0).unwrap().to_vec() == [5; 100_000], "it was written over");
}

/// Goal: several receivers share long and short messages, and none waits for what another has.
#[test]
fn threads_share_long_messages() {
    for mode in [WorkMode::BusyPoll, WorkMode::CompletionChannel, WorkMode::Epoll] {
        let (client, server) = pair(Config::default().work_mode(mode));
        let threads: Vec<_> = (0..4)
            .map(|kind| {
                let server = server.clone();
                thread::spawn(move || {
                    let block = server.endpoint().adapter().buffer(1, 50_000).unwrap();
                    let block = block.at(0).unwrap();
                    (0..50)
                        .map(|_| match kind % 2 {
                            0 => server.recv().unwrap().len(),
                            _ => server.recv_into(&block).unwrap(),
                        })
                        .sum::<usize>()
                })
            })
            .collect();
        let lens: Vec<_> = (0..200).map(|n| if n % 3 == 0 { 10 } else { 20_000 + n }).collect();
        lens.iter().for_each(|len| client.send(&vec![1; *len]).unwrap());
        let got: usize = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
        assert_eq!(got, lens.iter().sum());
        client.flush().unwrap();
    }
}
