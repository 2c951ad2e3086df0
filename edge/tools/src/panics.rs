//! What a panic prints: what happened, where, and what to report. Output that cannot be written is no
//! bug: a reader that has gone is no failure either, and a full disk is one like any other.

use std::backtrace::Backtrace;
use std::io::Write;
use std::panic::{self, PanicHookInfo};
use std::thread;

/// Has panics reported from now on.
pub(crate) fn report_them() {
    panic::set_hook(Box::new(|panic| {
        let Some(why) = unprinted(panic) else {
            return eprint!("{}", report(panic));
        };
        if why.contains("Broken pipe") {
            // The reader of our output has had enough, as `head` has.
            std::process::exit(0);
        }
        let _ = writeln!(std::io::stderr(), "adverb: {why}");
        std::process::exit(1);
    }));
}

/// Printing panics when it cannot: why.
fn unprinted<'a>(panic: &'a PanicHookInfo<'_>) -> Option<&'a str> {
    panic.payload_as_str().filter(|text| text.starts_with("failed printing to std"))
}

fn report(panic: &PanicHookInfo<'_>) -> String {
    let thread = thread::current();
    let system = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let arguments: Vec<_> = std::env::args_os().map(|a| a.to_string_lossy().into_owned()).collect();
    let ours = std::env::vars_os().filter_map(|(name, value)| {
        let name = name.to_str()?.to_owned();
        let told = name.starts_with("ADVERB_") && !name.contains("SECRET");
        told.then(|| format!("{name}={}", value.to_string_lossy()))
    });
    let ours: Vec<_> = ours.collect();
    let place = match env!("CARGO_PKG_REPOSITORY") {
        "" => "the tracker of this project",
        place => place,
    };
    format!(
        "\n---- adverb has a bug: please report everything from this line on to {place} ----\n\
         {panic}\n\
         thread:      {}\n\
         version:     {}\n\
         system:      Linux {} {}\n\
         command:     {}\n\
         environment: {}\n\
         {}\n\
         ---- if it happens again, ADVERB_LOG=debug says what came before ----\n",
        thread.name().unwrap_or("without a name"),
        env!("CARGO_PKG_VERSION"),
        system.trim(),
        std::env::consts::ARCH,
        arguments.join(" "),
        ours.join(" "),
        Backtrace::force_capture(),
    )
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    #[test]
    fn a_panic_prints_where_it_was_and_what_to_report_without_secrets() {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "panics::tests::panicking", "--ignored", "--nocapture"])
            .env("ADVERB_TEST_SECRET", "hush")
            .env("ADVERB_PATH", "auto")
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success());
        for part in ["please report", "panics.rs", "it is broken", "version:", "ADVERB_PATH=auto"] {
            assert!(text.contains(part), "{part} in {text}");
        }
        assert!(text.contains("tests::panicking"), "the backtrace names who panicked: {text}");
        assert!(!text.contains("hush"), "{text}");
    }

    #[test]
    #[ignore = "the child of another test"]
    fn panicking() {
        if std::env::var_os("ADVERB_TEST_SECRET").is_some() {
            super::report_them();
            panic!("it is broken");
        }
    }
}
