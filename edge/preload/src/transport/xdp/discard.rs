//! Bells of a socket that is in repair: such a socket receives nothing, but a pipe can take what is in its queue.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, Ordering};

use adverb_sys::fork::PerProcess;

use crate::base::raw;

/// A pipe to throw bytes away by: the numbers of both ends and one, 0 before there is one.
#[derive(Debug, Default)]
struct Process {
    pipe: [AtomicU32; 2],
}

static PROCESS: PerProcess<Process> = PerProcess::new();

/// Throws away bytes of a socket that is in repair; as `recv(2)`.
#[cold]
pub(crate) fn swallow(fd: c_int, most: usize) -> raw::Answer {
    let process = PROCESS.get();
    let [reader, writer] = pipe(process)?;
    let got = raw::splice(fd, writer, most)?;
    let mut left = got;
    let mut bytes = [0; 4096];
    while left > 0 {
        let most = left.min(bytes.len());
        match raw::read(reader, bytes.get_mut(..most).unwrap_or(&mut [])) {
            Ok(count @ 1..) => left -= count,
            Ok(_) | Err(_) => break, // Another thread has taken them out.
        }
    }
    Ok(got)
}

fn pipe(process: &Process) -> Result<[c_int; 2], raw::Errno> {
    let get = |end: &AtomicU32| c_int::try_from(end.load(Ordering::Acquire)).unwrap_or(0) - 1;
    let [reader, writer] = &process.pipe;
    if get(writer) < 0 {
        let [new_reader, new_writer] = raw::pipe_above(super::uplink::FD_MIN)?;
        let number = |fd: c_int| u32::try_from(fd + 1).unwrap_or(0);
        let (o, r) = (Ordering::AcqRel, Ordering::Acquire);
        if reader.compare_exchange(0, number(new_reader), o, r).is_ok() {
            for fd in [new_reader, new_writer] {
                super::uplink::process().note_own(fd);
            }
            writer.store(number(new_writer), Ordering::Release);
        } else {
            raw::close(new_reader);
            raw::close(new_writer);
        }
    }
    match [get(reader), get(writer)] {
        [_, ..0] => Err(raw::Errno::AGAIN),
        both => Ok(both),
    }
}
