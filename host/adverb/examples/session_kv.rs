//! A key-value store whose clients look values up by READ: the server's program does nothing.
//!
//! The table is one buffer of slots; a key's slot is its hash, and the ones after it. A slot is the
//! key, a checksum of key and value, and the value: a reader sees whether it was changed meanwhile.

use adverb::session::{Block, Buffer, Channel, ClientSession, Config, RemoteBuffer, ServerSession};
use std::error::Error;
use std::{thread, time::Duration};

type Outcome<T> = Result<T, Box<dyn Error>>;

const SLOTS: usize = 64;
const SLOT_BYTES: usize = 64;
const VALUE: usize = 16;

fn slot_of(key: u64) -> usize {
    let slots = u64::try_from(SLOTS).unwrap_or(1);
    usize::try_from(key.wrapping_mul(0x9e37_79b9_7f4a_7c15) % slots).unwrap_or(0)
}

/// FNV-1a of 64 bits, begun with the key.
fn checksum(key: u64, value: &[u8]) -> u64 {
    let step = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    value.iter().fold(key ^ 0xcbf2_9ce4_8422_2325, step)
}

/// The server's side: puts a value into the table. Keys are not 0.
fn put(table: &Buffer, key: u64, text: &str) -> Outcome<()> {
    let mut value = [0; SLOT_BYTES - VALUE];
    value.get_mut(..text.len()).ok_or("too long")?.copy_from_slice(text.as_bytes());
    for step in 0..SLOTS {
        let slot = table.at((slot_of(key) + step) % SLOTS)?;
        let known = slot.load_u64(0)?;
        if known == 0 || known == key {
            slot.write(VALUE, &value)?;
            slot.store_u64(8, checksum(key, &value))?;
            slot.store_u64(0, key)?;
            return Ok(());
        }
    }
    Err("the table is full".into())
}

/// The client's side: reads slots until it has the key, or a free one.
fn get(channel: &Channel, table: &RemoteBuffer, room: &Block, key: u64) -> Outcome<Option<String>> {
    for step in 0..SLOTS {
        let slot = table.at((slot_of(key) + step) % SLOTS)?;
        let (known, value) = loop {
            channel.read(room.clone(), slot)?;
            let (known, value) = (room.load_u64(0)?, room.to_vec().split_off(VALUE));
            if known == 0 || room.load_u64(8)? == checksum(known, &value) {
                break (known, value);
            } // Else it was changed while it was read: once more.
        };
        if known == 0 {
            return Ok(None);
        } else if known == key {
            return Ok(Some(String::from_utf8(value)?.trim_end_matches('\0').to_owned()));
        }
    }
    Ok(None)
}

fn main() -> Outcome<()> {
    let mut server = ServerSession::bind("127.0.0.1:0", Config::default())?;
    let address = server.local_addr();
    let table = server.adapter()?.buffer(SLOTS, SLOT_BYTES)?;
    put(&table, 1, "one")?;
    put(&table, 42, "the answer")?;
    let accepting = thread::spawn(move || server.accept(Duration::MAX));
    let endpoint = ClientSession::new(Config::default())?.connect(address)?;
    let served = accepting.join().map_err(|_| "the server panicked")??;
    served.advertise("table", &table)?;
    let (channel, remote) = (endpoint.channel("data")?, endpoint.remote_buffer("table")?);
    let room = endpoint.adapter().buffer(1, SLOT_BYTES)?.at(0)?;
    for key in [1, 42, 7] {
        println!("{key}: {:?}", get(&channel, &remote, &room, key)?);
    }
    Ok(())
}
