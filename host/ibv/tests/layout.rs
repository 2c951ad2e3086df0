//! The layouts are the header's: a C program that is compiled against it says the same sizes, alignments, offsets
//! and numbers as ours. Without a header or a compiler that is skipped.
//!
//! What is compared is listed in `layout/facts.rs`. The list is complete: another test reads the source of the
//! layout and fails if it has a structure, a public field or a number that the list has not.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may fail")]

#[path = "layout/facts.rs"]
mod facts;

use facts::{Fact, numbers, structures};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

/// What the header of rdma-core 44, the oldest that is compared with, lacks: where it came, what C calls it, and
/// its value, typed in by hand from there.
const LATER: [(&str, &[(&str, i128)]); 6] = [
    (
        "rdma-core 46",
        &[
            ("IBV_QP_EX_WITH_FLUSH", 0x800),
            ("IBV_WC_FLUSH", 8),
            ("offsetof(struct ibv_qp_ex, wr_flush)", 352),
            ("sizeof(struct ibv_qp_ex)", 360),
        ],
    ),
    (
        "rdma-core 59",
        &[
            ("IBV_ODP_SUPPORT_FLUSH", 0x40),
            ("IBV_ODP_SUPPORT_ATOMIC_WRITE", 0x80),
            ("IBV_REG_MR_MASK_IOVA", 1),
            ("IBV_REG_MR_MASK_ADDR", 2),
            ("IBV_REG_MR_MASK_FD", 4),
            ("IBV_REG_MR_MASK_FD_OFFSET", 8),
            ("IBV_REG_MR_MASK_DMAH", 0x10),
            ("_Alignof(struct ibv_mr_init_attr)", 8),
            ("offsetof(struct ibv_mr_init_attr, length)", 0),
            ("offsetof(struct ibv_mr_init_attr, access)", 8),
            ("offsetof(struct ibv_mr_init_attr, comp_mask)", 16),
            ("offsetof(struct ibv_mr_init_attr, iova)", 24),
            ("offsetof(struct ibv_mr_init_attr, addr)", 32),
            ("offsetof(struct ibv_mr_init_attr, fd)", 40),
            ("offsetof(struct ibv_mr_init_attr, fd_offset)", 48),
            ("offsetof(struct ibv_mr_init_attr, dmah)", 56),
        ],
    ),
    (
        "rdma-core 65",
        &[
            ("IBV_REG_MR_MASK_BUF", 0x20),
            ("offsetof(struct ibv_mr_init_attr, buf)", 64),
            ("sizeof(struct ibv_mr_init_attr)", 72),
        ],
    ),
    (
        "the header rdma/ib_user_verbs.h of Linux 6.2",
        &[
            ("IB_UVERBS_DEVICE_FLUSH_GLOBAL", 0x40_0000_0000),
            ("IB_UVERBS_DEVICE_ATOMIC_WRITE", 0x100_0000_0000),
        ],
    ),
    (
        "the kernel's rdma/ib_verbs.h, which is not installed",
        &[
            ("IB_PORT_PHYS_STATE_DISABLED", 3),
            ("IB_PORT_PHYS_STATE_LINK_UP", 5),
            ("IB_WIDTH_4X", 2),
            ("IB_SPEED_QDR", 4),
        ],
    ),
    (
        "rdma-core 65, for providers",
        &[
            ("_Alignof(struct ibv_buf)", 8),
            ("offsetof(struct ibv_buf, addr)", 0),
            ("offsetof(struct ibv_buf, size)", 8),
            ("offsetof(struct ibv_buf, pd)", 16),
            ("offsetof(struct ibv_buf, dmabuf_fd)", 24),
            ("sizeof(struct ibv_buf)", 32),
        ],
    ),
];

/// The size to which later releases have added.
const GROWN: &str = "sizeof(struct ibv_port_attr)";

/// What the installed header says of them, or why a program that asks it does not compile.
fn theirs(facts: &[&Fact], program: &str) -> Result<Vec<i128>, String> {
    let print = |fact: &&Fact| format!("  printf(\"%lld\\n\", (long long)({}));\n", fact.c);
    let lines: String = facts.iter().map(print).collect();
    let source = format!(
        "#include <stdio.h>\n#include <stddef.h>\n#include <infiniband/verbs.h>\n\
         #include <rdma/ib_user_verbs.h>\n#include <rdma/ib_user_sa.h>\n#include <infiniband/sa.h>\nint main(void) {{\n{lines}  return 0;\n}}\n"
    );
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(program);
    let file = program.with_extension("c");
    std::fs::write(&file, source).unwrap();
    let compiled = Command::new("cc").arg(&file).arg("-o").arg(&program).output();
    let compiled = compiled.map_err(|error| format!("no compiler: {error}"))?;
    if !compiled.status.success() {
        return Err(String::from_utf8(compiled.stderr).unwrap());
    }
    let output = Command::new(&program).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let theirs: Vec<i128> = text.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(theirs.len(), facts.len());
    Ok(theirs)
}

fn compare(facts: &[&Fact], theirs: &[i128]) {
    let differ = |(fact, theirs): &(&&Fact, &i128)| match fact.c == GROWN {
        true => fact.ours > **theirs,
        false => fact.ours != **theirs,
    };
    let say = |(Fact { name, c, ours }, theirs): (&&Fact, &i128)| {
        format!("{name} is {ours}, but {c} is {theirs}")
    };
    let wrong: Vec<_> = facts.iter().zip(theirs).filter(differ).map(say).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

fn all() -> Vec<Fact> {
    structures().into_iter().chain(numbers()).collect()
}

#[test]
fn every_layout_and_number_is_the_headers() {
    if let Err(why) = theirs(&[], "probe") {
        println!(
            "skipped: no compiler, or no header of libibverbs, to compare layouts with: {why}"
        );
        return;
    }
    let later: BTreeSet<_> = LATER.iter().flat_map(|(_, facts)| *facts).map(|(c, _)| *c).collect();
    let facts = all();
    let facts: Vec<_> = facts.iter().filter(|fact| !later.contains(&*fact.c)).collect();
    compare(&facts, &theirs(&facts, "layout").unwrap());
}

/// Method: against the values of the release that brought it, and against the installed header if that has it.
#[test]
fn what_an_old_header_lacks_is_as_in_the_release_that_brought_it() {
    let facts = all();
    for (number, (release, values)) in LATER.iter().enumerate() {
        let fact = |c: &str| facts.iter().find(|fact| fact.c == c).unwrap_or_else(|| panic!("{c}"));
        let (facts, values): (Vec<_>, Vec<_>) =
            values.iter().map(|&(c, value)| (fact(c), value)).unzip();
        compare(&facts, &values);
        match theirs(&facts, &format!("later-{number}")) {
            Ok(theirs) => compare(&facts, &theirs),
            Err(_) => println!("not compared with the installed header: what came with {release}"),
        }
    }
}

/// Structures, their public fields and numbers of a source file, by name.
fn names(source: &str) -> BTreeSet<String> {
    let word = |text: &str| {
        let end = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
        text[..end].to_owned()
    };
    let mut names = BTreeSet::new();
    let mut within = None;
    for line in source.lines() {
        let line = line.trim_start();
        let structure = line.strip_prefix("pub struct ").or(line.strip_prefix("pub union "));
        if let Some(structure) = structure {
            within = line.ends_with('{').then(|| word(structure));
            names.insert(word(structure));
        } else if let Some(number) = line.strip_prefix("pub const ") {
            let own = number.contains(": Self") || number.starts_with("fn ");
            names.extend((!own).then(|| word(number)));
        } else if let (Some(structure), Some(field)) = (&within, line.strip_prefix("pub ")) {
            names.insert(format!("{structure}.{}", word(field)));
        } else if line == "}" {
            within = None;
        }
    }
    names
}

#[test]
fn every_structure_field_and_number_of_the_source_is_compared() {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/src/layout"));
    let parts = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let files = parts.chain([folder.with_extension("rs")]);
    let source: BTreeSet<_> =
        files.flat_map(|file| names(&std::fs::read_to_string(file).unwrap())).collect();
    let compared: BTreeSet<_> = all().into_iter().map(|fact| fact.name).collect();
    let missing: Vec<_> = source.difference(&compared).collect();
    assert!(missing.is_empty(), "not in tests/layout/facts.rs: {missing:?}");
    let unknown: Vec<_> = compared.difference(&source).collect();
    assert!(unknown.is_empty(), "the source is not read as it is written: {unknown:?}");
}
