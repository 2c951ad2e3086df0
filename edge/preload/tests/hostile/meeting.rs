//! The place where rings meet, or files in it, belong to another user, or others may write there.
//!
//! # Safety
//!
//! One call asks for the number of the user; it takes nothing.

use std::fs::{self, Permissions};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::Path;
use std::process::Stdio;

use crate::child;
use crate::running::{Running, succeed};
use crate::support::Place;

const SHARED: &str = "shared memory with the peer";
const NO_PLACE: &str = "there is no directory of this user alone";
const WARNING: &str = "all sockets stay with the kernel";
const OTHER: u32 = 65534;

/// Whether files can be given to another user here.
fn is_root() -> bool {
    // SAFETY: the call has no preconditions.
    let is_root = unsafe { libc::geteuid() } == 0;
    if !is_root {
        eprintln!("skipped: files can be given to another user by root only");
    }
    is_root
}

fn make_dir(path: &Path, mode: u32) {
    fs::create_dir(path).expect("a directory");
    fs::set_permissions(path, Permissions::from_mode(mode)).expect("a directory");
}

/// Runs a program in such a place: its connection is the kernel's, it says why, warns once, and touches
/// nothing there.
fn refuses(place: &Place) {
    let said = succeed(&mut child(place, "alone"));
    assert!(!said.contains(SHARED), "{said}");
    assert!(said.contains(NO_PLACE), "{said}");
    assert_eq!(said.matches(WARNING).count(), 1, "{said}");
    assert!(!said.contains("mapped"), "{said}");
    let files = fs::read_dir(place.rings()).expect("a directory").count();
    assert_eq!(files, 0, "it has made files there");
}

/// Goal: a directory that another user has made first is not used.
#[test]
fn a_meeting_place_of_another_user_is_not_used() {
    if !is_root() {
        return;
    }
    for mode in [0o700, 0o777] {
        let place = Place::new("squatted");
        make_dir(&place.rings(), mode);
        chown(place.rings(), Some(OTHER), Some(OTHER)).expect("root may");
        refuses(&place);
    }
}

/// Goal: nor is one of this user's to which others may write, nor one behind a symbolic link.
#[test]
fn a_meeting_place_that_others_may_change_is_not_used() {
    for mode in [0o770, 0o702] {
        let place = Place::new("open");
        make_dir(&place.rings(), mode);
        refuses(&place);
    }
    let place = Place::new("link");
    make_dir(&place.0.join("real"), 0o700);
    symlink("real", place.rings()).expect("a link");
    refuses(&place);
}

/// Goal: files of another user's, those that others may open and those with strange names are not mapped.
/// Method: a first program makes them, and stays; a second finds them changed.
#[test]
fn files_that_are_not_this_users_alone_are_not_mapped() {
    if !is_root() {
        return;
    }
    type Change = (&'static str, fn(&Path));
    let changes: [Change; 4] = [
        ("owner", |file| chown(file, Some(OTHER), None).expect("root may")),
        ("mode", |file| {
            fs::set_permissions(file, Permissions::from_mode(0o606)).expect("a file");
        }),
        ("names", |file| {
            for name in ["second", "third"] {
                fs::hard_link(file, file.with_extension(name)).expect("a link");
            }
        }),
        ("link", |file| {
            let real = file.with_extension("real");
            fs::rename(file, &real).expect("a file");
            symlink(&real, file).expect("a link");
        }),
    ];
    for (what, change) in changes {
        let place = Place::new(&format!("planted-{what}"));
        let mut first = Running::start(child(&place, "stay").stdout(Stdio::piped()));
        assert!(first.lines().any(|line| line == "here"), "it has not begun");
        let mut planted = Vec::new();
        for entry in fs::read_dir(place.rings()).expect("a directory").flatten() {
            let name = entry.file_name().into_string().expect("a name");
            if ["ports", "doorbells", "udp"].contains(&name.split('.').next().unwrap_or("")) {
                planted.push(entry.metadata().expect("a file").ino());
                change(&entry.path());
            }
        }
        assert!(planted.len() >= 2, "{what}: {planted:?}");
        let said = succeed(&mut child(&place, "alone"));
        for inode in planted {
            assert!(!said.contains(&format!("mapped {inode} ")), "{what}: {said}");
        }
        assert!(!said.contains(SHARED), "{what}: {said}");
    }
}

/// Goal: where all is as it should be, there is shared memory: the tests above would notice it.
#[test]
fn a_meeting_place_of_this_user_alone_is_used() {
    let place = Place::new("own");
    let said = succeed(&mut child(&place, "alone"));
    assert!(said.contains(SHARED) && said.contains("mapped"), "{said}");
    assert!(!said.contains(WARNING), "{said}");
}

fn converse(server: &mut TcpStream, client: &mut TcpStream) {
    let mut buffer = [0; 5];
    for _ in 0..10 {
        client.write_all(b"hello").expect("a connection");
        server.read_exact(&mut buffer).expect("a connection");
        server.write_all(&buffer).expect("a connection");
        client.read_exact(&mut buffer).expect("a connection");
        assert_eq!(&buffer, b"hello");
    }
}

/// A program that talks to itself, by TCP and UDP, and says which files of the meeting place it has mapped.
pub(crate) fn talk_to_itself() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let mut client = TcpStream::connect(listener.local_addr().expect("a port")).expect("a server");
    let (mut server, _) = listener.accept().expect("a connection");
    converse(&mut server, &mut client);
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
    socket.connect(socket.local_addr().expect("a port")).expect("itself");
    for _ in 0..10 {
        socket.send(b"hello").expect("itself");
        assert_eq!(socket.recv(&mut [0; 8]).expect("itself"), 5);
    }
    let rings = std::env::var("ADVERB_SOCKETS_SHM_DIR").expect("a place");
    let maps = fs::read_to_string("/proc/self/maps").expect("maps");
    for line in maps.lines().filter(|line| line.contains(&rings)) {
        let mut words = line.split_whitespace().skip(4);
        println!("mapped {} {}", words.next().unwrap_or(""), words.next().unwrap_or(""));
    }
}

/// The same, and stays until it is killed.
pub(crate) fn stay() {
    talk_to_itself();
    println!("here");
    std::thread::sleep(std::time::Duration::from_secs(600));
}
