//! A key-value store whose clients look values up by READ: the server's program does nothing.
//!
//! The table is one buffer of slots; a key's slot is its hash, and the ones after it. A slot is the
//! key, a version that is odd while the slot is changed, and the value.

use adverb::session::{Block, Buffer, Channel, ClientSession, Config, RemoteBuffer, ServerSession};
use std::error::Error;
use std::{thread, time::Duration};

const SLOTS: usize = 64;
const SLOT_BYTES: usize = 64;
const VALUE: usize = 16;

fn slot_of(key: u64) -> usize {
    let slots = u64::try_from(SLOTS).unwrap_or(1);
    usize::try_from(key.wrapping_mul(0x9e37_79b9_7f4a_7c15) % slots).unwrap_or(0)
}

/// The server's side: puts a value into the table. Keys are not 0.
fn put(table: &Buffer, key: u64, value: &str) -> Result<(), Box<dyn Error>> {
    for step in 0..SLOTS {
        let slot = table.at((slot_of(key) + step) % SLOTS)?;
        let known = slot.load_u64(0)?;
        if known == 0 || known == key {
            let version = slot.load_u64(8)?;
            slot.store_u64(8, version | 1)?;
            slot.write(VALUE, &[0; SLOT_BYTES - VALUE])?;
            slot.write(VALUE, value.as_bytes())?;
            slot.store_u64(0, key)?;
            slot.store_u64(8, (version | 1) + 1)?;
            return Ok(());
        }
    }
    Err("the table is full".into())
}

/// The client's side: reads slots until it has the key, or a free one.
fn get(
    channel: &Channel,
    table: &RemoteBuffer,
    room: &Block,
    key: u64,
) -> Result<Option<String>, Box<dyn Error>> {
    for step in 0..SLOTS {
        let slot = table.at((slot_of(key) + step) % SLOTS)?;
        let text = loop {
            channel.read(room.clone(), slot)?;
            let (bytes, version) = (room.to_vec().split_off(VALUE), room.load_u64(8)?);
            // Once more: it may have been changed while it was read.
            channel.read(room.clone(), slot)?;
            if version % 2 == 0 && version == room.load_u64(8)? {
                break String::from_utf8(bytes)?;
            }
        };
        match room.load_u64(0)? {
            0 => return Ok(None),
            known if known == key => return Ok(Some(text.trim_end_matches('\0').to_owned())),
            _ => {}
        }
    }
    Ok(None)
}

fn main() -> Result<(), Box<dyn Error>> {
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
