//! Runtimes that wait for many sockets in ways of their own: asyncio, Node.js, tokio.

use std::path::PathBuf;
use std::process::Command;

use crate::child::Role;
use crate::running::{Running, are_installed, explain, explained, ringed, succeed};
use crate::support::{Place, free_port};

/// A script beside this file.
pub(crate) fn script(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(name)
}

#[derive(Clone, Copy, Debug)]
enum Runtime {
    Asyncio,
    Node,
    Tokio,
}

impl Runtime {
    fn program(self, place: &Place, role: &str, port: u16) -> Command {
        let run = |program, file| {
            let mut command = place.command(program);
            command.arg(script(file)).args([role, &port.to_string()]);
            command
        };
        match self {
            Self::Asyncio => run("python3", "echo.py"),
            Self::Node => run("node", "echo.js"),
            Self::Tokio if role == "serve" => Role::ServeTokio.command(place, port),
            Self::Tokio => Role::CallTokio(20).command(place, port),
        }
    }
}

/// Goal: whoever serves and whoever asks, each gets every byte and every end.
/// Method: each runtime serves each, on 20 connections at once, with half of each closed first; then
/// one without the library, on the same listening socket. A client begins with a question and its
/// answer: one that has sent everything before it is accepted needs no rings.
#[test]
fn runtimes_serve_each_other() {
    let mut runtimes = vec![Runtime::Tokio];
    if are_installed(&["python3"]) {
        runtimes.push(Runtime::Asyncio);
    }
    if are_installed(&["node"]) {
        runtimes.push(Runtime::Node);
    }
    let place = Place::new("runtimes");
    for server in &runtimes {
        let port = free_port();
        let mut serving = server.program(&place, "serve", port);
        let _server = Running::serve(explain(&place, &mut serving), port);
        for client in &runtimes {
            let before = ringed(&place);
            let said = succeed(&mut client.program(&place, "call", port));
            assert!(said.contains("right: 20"), "{client:?} of {server:?}: {said}");
            let lines = std::fs::read_to_string(explained(&place)).expect("a file");
            assert!(ringed(&place) > before, "{client:?} of {server:?} had no rings:\n{lines}");
        }
        let mut plain = Runtime::Tokio.program(&place, "call", port);
        let said = succeed(plain.env_remove("LD_PRELOAD"));
        assert!(said.contains("right: 20"), "a plain one of {server:?}: {said}");
    }
}
