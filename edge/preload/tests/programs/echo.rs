//! An echo in tokio, and one that asks it: thousands of connections in one process.
//!
//! # Safety
//!
//! One call fills in a local structure.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

fn runtime() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(2).enable_io().build().expect("a runtime")
}

/// Echoes for ever.
pub(crate) fn serve(port: u16) {
    runtime().block_on(async {
        let listener = TcpListener::bind(("127.0.0.1", port)).await.expect("a port");
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut reader, mut writer) = stream.split();
                let _ = tokio::io::copy(&mut reader, &mut writer).await;
                let _ = writer.shutdown().await;
            });
        }
    });
}

/// Asks on so many connections: on all of them a little, while all of them are there; then on each a
/// lot, whose answer is read while it is sent; and counts those that were right to the end.
pub(crate) fn call(port: u16, count: usize) {
    runtime().block_on(async {
        let mut streams = Vec::new();
        for number in 0..count {
            let stream = TcpStream::connect(("127.0.0.1", port)).await;
            let mut stream = stream.unwrap_or_else(|error| panic!("connection {number}: {error}"));
            if number % AHEAD == AHEAD - 1 {
                // More than a listener keeps in store would have to wait for a second.
                ask_little(&mut stream, number).await;
            }
            streams.push(stream);
        }
        for (number, stream) in streams.iter_mut().enumerate() {
            ask_little(stream, number).await;
        }
        let len = (8_000_000 / count).clamp(1_000, 100_000);
        let tasks: Vec<_> = (0..)
            .zip(streams)
            .map(|(number, stream)| tokio::spawn(ask(stream, number, len)))
            .collect();
        let mut right = 0;
        for task in tasks {
            right += usize::from(task.await.expect("a task"));
        }
        println!("right: {right}");
    });
    println!("used us: {}", used_us());
}

/// Connections that the server may be behind.
const AHEAD: usize = 256;

/// How long this process has had a processor, in microseconds.
fn used_us() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes a local time.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    u64::try_from(time.tv_sec * 1_000_000 + time.tv_nsec / 1000).expect("a time")
}

async fn ask_little(stream: &mut TcpStream, number: usize) {
    let question = number.to_le_bytes();
    stream.write_all(&question).await.expect("the server");
    let mut answer = question.map(|_| 0);
    stream.read_exact(&mut answer).await.expect("the server");
    assert_eq!(answer, question);
}

async fn ask(mut stream: TcpStream, number: usize, len: usize) -> bool {
    let question: Vec<u8> = (0..251).cycle().skip(number % 251).take(len).collect();
    let (mut reader, mut writer) = stream.split();
    let mut answer = Vec::new();
    let send = async {
        writer.write_all(&question).await?;
        writer.shutdown().await
    };
    let (sent, read) = tokio::join!(send, reader.read_to_end(&mut answer));
    sent.is_ok() && read.is_ok() && answer == question
}
