//! The book's whole programs, run as a reader would run them; and that the book shows what is run.

use std::collections::BTreeSet;
use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

fn book() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Chapters by name without `.md`, and their text.
fn chapters() -> Vec<(String, String)> {
    let files = fs::read_dir(book().join("src")).expect("chapters").flatten();
    let pages =
        files.map(|file| file.path()).filter(|path| path.extension() == Some("md".as_ref()));
    let chapters = pages.map(|path| {
        let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
        (name, fs::read_to_string(path).expect("a chapter"))
    });
    chapters.collect()
}

#[test]
fn every_chapter_is_in_the_summary_and_every_one_with_a_listing_is_compiled() {
    let summary = fs::read_to_string(book().join("src/SUMMARY.md")).expect("a summary");
    for (name, text) in chapters().iter().filter(|(name, _)| name != "SUMMARY") {
        assert!(summary.contains(&format!("({name}.md)")), "{name} is not in the summary");
        let has_listing = text.contains("```rust");
        let is_compiled = adverb_book::CHAPTERS.contains(&name.as_str());
        assert_eq!(has_listing, is_compiled, "{name}: see listings.rs");
        // The package's own tests run those of one chapter.
        assert!(name == "python" || !text.contains("```python"), "{name}: is not run");
    }
}

#[test]
fn every_block_of_code_says_its_language() {
    let known = ["rust", "rust,no_run", "python", "sh", "toml", "json", "yaml", "text", "c"];
    for (name, text) in chapters() {
        let mut fences = text.lines().filter_map(|line| line.strip_prefix("```"));
        while let Some(language) = fences.next() {
            // What is not compiled is not called Rust: `ignore` would hide it.
            assert!(known.contains(&language), "{name}: {language:?}");
            assert_eq!(fences.next(), Some(""), "{name}: a block without an end");
        }
    }
}

#[test]
fn the_programs_that_chapters_show_are_those_of_the_tree() {
    let root = book().parent().and_then(Path::parent).expect("the tree");
    let mut shown = BTreeSet::new();
    for (name, text) in chapters() {
        for part in text.split("<!-- listing ").skip(1) {
            let (path, rest) = part.split_once(" -->\n").expect("a path");
            let block = rest.split("```").nth(1).and_then(|block| block.split_once('\n'));
            let (_, block) = block.expect("a block of code");
            let program = fs::read_to_string(root.join(path)).expect("a program");
            let lines = program.lines().skip_while(|line| line.starts_with("//!"));
            let body = lines.skip_while(|line| line.is_empty()).collect::<Vec<_>>().join("\n");
            assert!(block.trim_end() == body, "{name} does not show {path} as it is:\n{body}");
            shown.insert(path.to_owned());
        }
        // What is not run within a chapter is run here.
        let unrun = text.matches("```rust,no_run").count();
        assert_eq!(unrun, text.matches(".rs -->\n```rust").count(), "{name}");
    }
    for file in fs::read_dir(book().join("examples")).expect("programs").flatten() {
        let path = format!("docs/book/examples/{}", file.file_name().to_string_lossy());
        assert!(shown.contains(&path), "no chapter shows {path}");
    }
}

/// An example, which cargo has built beside this test.
fn example(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("this test has a path");
    let target = test.parent().and_then(Path::parent).expect("in target/…/deps");
    target.join("examples").join(name)
}

/// Runs server and client in processes of their own, and returns what the two have printed.
fn two(name: &str) -> (String, String) {
    // A port that is free now: taken again at once.
    let free = TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr());
    let address = free.expect("a port").to_string();
    let command = |role: &str| {
        let mut command = Command::new(example(name));
        command.args([role, &address, "soft_lo"]).stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    };
    let server = command("server").spawn().expect("a server");
    // A client that finds no server ends; the connection of a look would be taken for a client.
    let client = loop {
        let client = command("client").output().expect("a client");
        let is_early = String::from_utf8_lossy(&client.stderr).contains("ConnectionRefused");
        if !is_early {
            break client;
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    let server = server.wait_with_output().expect("a server");
    let text = |output: Output| {
        assert!(output.status.success(), "{name}: {output:?}");
        String::from_utf8(output.stdout).expect("text")
    };
    assert!(TcpStream::connect(&address).is_err(), "nothing is left of {name}");
    (text(server), text(client))
}

#[test]
fn two_processes_exchange_addresses_and_a_message() {
    assert_eq!(two("two_processes"), ("hello\n".to_owned(), String::new()));
}

#[test]
fn the_pingpong_makes_its_round_trips() {
    let (server, client) = two("rc_pingpong");
    for text in [&server, &client] {
        assert!(text.contains("1000 round trips of 4096 bytes"), "{text}");
    }
    let addresses = |text: &str| -> Vec<String> {
        text.lines()
            .take(2)
            .filter_map(|line| line.split_whitespace().last())
            .map(str::to_owned)
            .collect()
    };
    let (mut near, far) = (addresses(&server), addresses(&client));
    near.reverse();
    assert_eq!(near, far, "what is local to one is remote to the other");
}
