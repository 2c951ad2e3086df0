//! Commands and answers of rdma_cm are the header's: a C program that is compiled against it makes the commands that are
//! read here, and reads the answers that are made here. Without a header or a compiler it is skipped.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may fail")]

use adverb_ibv::rdma_cm::{
    AddressAnswer, AhAttr, Command, CommandError, Event, EventKind, Param, Parameters, PathRecord,
    Place, QpAttr, Query, Request, RouteAnswer, path_answer,
};
use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

/// The C program; it is gone afterwards.
struct Compiled(PathBuf);

impl Compiled {
    fn new() -> Option<Self> {
        static MADE: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = MADE.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let program = format!("adverb-rdma-cm-header-{}-{number}", std::process::id());
        let program = std::env::temp_dir().join(program);
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/rdma_cm/header.c");
        let output = std::process::Command::new("cc").arg(source).arg("-o").arg(&program).output();
        match output {
            Ok(output) if output.status.success() => Some(Self(program)),
            Ok(output) => {
                let why = String::from_utf8_lossy(&output.stderr).into_owned();
                assert!(why.contains("rdma_user_cm.h"), "{why}");
                println!("skipped: no header of rdma_cm");
                None
            }
            Err(error) => {
                println!("skipped: no C compiler: {error}");
                None
            }
        }
    }
}

impl Drop for Compiled {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// The commands that the header's structures make, with their names.
fn commands(program: &Compiled) -> Vec<(String, Vec<u8>)> {
    let output = std::process::Command::new(&program.0).arg("commands").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let bytes = |hex: &str| {
        let digits: Vec<_> = hex.chars().map(|digit| digit.to_digit(16).unwrap()).collect();
        digits.chunks(2).map(|two| u8::try_from(two[0] * 16 + two[1]).unwrap()).collect()
    };
    let line = |line: &str| {
        let (name, hex) = line.split_once(' ').unwrap();
        (name.to_owned(), bytes(hex))
    };
    text.lines().map(line).collect()
}

fn parameters() -> Parameters {
    Parameters {
        qp_num: 1,
        qkey: 2,
        private: b"abc".to_vec(),
        srq: true,
        responder_resources: 4,
        initiator_depth: 5,
        flow_control: true,
        retry_count: 6,
        rnr_retry_count: 7,
    }
}

/// What the program's commands mean, in its order: the command, and how much room there is for its answer.
fn meanings() -> Vec<(Command, usize)> {
    let v4: SocketAddr = "10.1.2.3:8".parse().unwrap();
    let v6: SocketAddr = "[fe80::1%3]:7".parse().unwrap();
    let (id, uid) = (13, 11);
    let timeout = Duration::from_millis(14);
    vec![
        (Command::CreateId { uid, port_space: 0x106, qp_type: 2 }, 4),
        (Command::DestroyId { id }, 4),
        (Command::Bind { id, address: v6 }, 0),
        (Command::ResolveAddress { id, source: None, destination: v4, timeout }, 0),
        (Command::ResolveRoute { id, timeout }, 0),
        (Command::Query { id, what: Query::Route }, 208),
        (Command::Connect { id, parameters: parameters() }, 0),
        (Command::Listen { id, backlog: 15 }, 0),
        (Command::Accept { id, uid, parameters: None }, 0),
        (Command::Accept { id, uid, parameters: Some(parameters()) }, 0),
        (Command::Reject { id, reason: 28, private: b"xyz".to_vec() }, 0),
        (Command::Disconnect { id }, 0),
        (Command::InitQpAttr { id, state: 2 }, 144),
        (Command::GetEvent, 336),
        (Command::SetOption { id, level: 0, name: 3, value: Place { address: 16, len: 1 } }, 0),
        (Command::Notify { id, event: 4 }, 0),
        (Command::JoinMulticast { id, uid, address: v6, send_only: false }, 4),
        (Command::LeaveMulticast { id }, 4),
        (Command::MigrateId { id, fd: 17 }, 4),
        (Command::Query { id, what: Query::Address }, 280),
        (Command::Bind { id, address: v4 }, 0),
        (Command::ResolveAddress { id, source: Some(v6), destination: v6, timeout }, 0),
        (Command::JoinMulticast { id, uid, address: v4, send_only: true }, 4),
    ]
}

#[test]
fn every_command_of_the_header_is_understood() {
    let Some(program) = Compiled::new() else {
        return;
    };
    let commands = commands(&program);
    let meanings = meanings();
    assert_eq!(commands.len(), meanings.len());
    for ((name, bytes), (command, room)) in commands.into_iter().zip(meanings) {
        let address = if room == 0 { 0 } else { 12 };
        let place = Place { address, len: room };
        assert_eq!(Request::parse(&bytes), Ok(Request { command, place }), "{name}");
    }
}

/// Goal: whatever is cut off or has no room is refused, and what later releases add is not needed.
#[test]
fn a_command_that_is_cut_off_or_has_no_room_for_its_answer_is_refused() {
    let Some(program) = Compiled::new() else {
        return;
    };
    for (name, bytes) in commands(&program) {
        assert_eq!(Request::parse(&bytes[..bytes.len() - 9]), Err(CommandError::Invalid), "{name}");
        let mut longer = bytes.clone();
        longer.extend([0xff; 32]);
        assert_eq!(Request::parse(&longer), Request::parse(&bytes), "{name}");
        let mut no_room = bytes.clone();
        no_room[6..8].copy_from_slice(&3_u16.to_ne_bytes());
        let refused = Request::parse(&no_room) == Err(CommandError::NoRoom);
        assert_eq!(refused, bytes[6..8] != [0, 0], "{name}");
    }
    let unknown = |number: u8| Request::parse(&[number, 0, 0, 0, 0, 0, 0, 0]).unwrap_err().errno();
    assert_eq!([13, 23, 25].map(unknown), [libc::ENOSYS, libc::ENOSYS, libc::EINVAL]);
}

/// Goal: the fields are where C looks for them. Method: each has a value of its own.
#[test]
fn every_answer_is_what_the_header_says() {
    let Some(program) = Compiled::new() else {
        return;
    };
    let gid = |last| {
        let mut gid = [0; 16];
        gid[15] = last;
        gid
    };
    let ah = AhAttr {
        dgid: gid(1),
        flow_label: 2,
        sgid_index: 3,
        hop_limit: 4,
        traffic_class: 5,
        sl: 6,
        port_num: 7,
    };
    let event = |param| Event { uid: 1, id: 2, kind: EventKind(3), status: -4, param }.emit();
    let path = PathRecord {
        dgid: gid(1),
        sgid: gid(2),
        flow_label: 3,
        mtu: 4,
        pkey: 0xffff,
        hop_limit: 5,
        traffic_class: 6,
        rate: 7,
        packet_life_time: 8,
    };
    let source: Option<SocketAddr> = Some("10.1.2.3:9".parse().unwrap());
    let destination: Option<SocketAddr> = Some("[fe80::1%3]:10".parse().unwrap());
    let datagram = Param::Datagram { qp_num: 5, qkey: 6, ah, private: b"pqr".to_vec() };
    let attributes = QpAttr {
        mask: 1,
        state: 2,
        path_mtu: 3,
        qkey: 4,
        rq_psn: 5,
        sq_psn: 6,
        dest_qp_num: 7,
        access_flags: 8,
        ah,
        pkey_index: 9,
        max_rd_atomic: 10,
        max_dest_rd_atomic: 11,
        min_rnr_timer: 12,
        port_num: 13,
        timeout: 14,
        retry_cnt: 15,
        rnr_retry: 16,
    };
    let route =
        RouteAnswer { node_guid: 11, port_num: 12, path, is_resolved: true, source, destination };
    let address = AddressAnswer { node_guid: 13, port_num: 14, pkey: 15, source, destination };
    let answers = [
        event(Param::Connection(parameters())),
        event(datagram),
        attributes.emit(),
        route.emit(),
        address.emit(),
        path_answer(Some(&path), 80),
    ];
    let mut child = std::process::Command::new(&program.0)
        .arg("answers")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(&answers.concat()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "C read as many bytes as there are: {output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let said: Vec<_> = text.lines().collect();
    assert_eq!(
        said,
        [
            "1 2 3 -4 1 2 abc 3 1 4 5 1 6 7",
            "5 6 pqr 3 1 2 3 4 5 6 1 7",
            "1 2 3 4 5 6 7 8 3 9 10 11 12 13 14 15 16",
            "11 1 12 4294967295 9 10 3 1 2 3 4 65535 5 6 1 7 8",
            "13 14 15 16 28 10 4294967295",
            "1 43 00000001 00000002 00000305 0681ffff 00008487 88000000",
        ]
    );
}
