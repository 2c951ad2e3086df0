//! `adverb counters`: what the devices have counted.
//!
//! A device lives in the process that uses it and counts there: this command shows its own view,
//! whose port counters also see what reaches this process of others' traffic.

use std::fmt::Write as _;
use std::io::Write as _;
use std::time::Duration;

use adverb::verbs::{self, Context};
use serde_json::{Map, Value, json};

use crate::args::CountersArgs;
use crate::failure::{Doing, Failure};

/// Runs the subcommand.
pub(crate) fn run(args: &CountersArgs) -> Result<(), Failure> {
    let found = verbs::devices().doing("listing the RDMA devices")?;
    let mut open = Vec::new();
    for device in found.iter().filter(|device| is_asked_for(args, &device.name)) {
        let context = Context::open(&device.name).doing(format_args!("opening {}", device.name))?;
        open.push(context);
    }
    if open.is_empty() {
        return Err(Failure::failed(match &args.device {
            Some(name) => format!("there is no device {name}: see `adverb devices`"),
            None => "no RDMA device: no network interface that is up has an address".to_owned(),
        }));
    }
    loop {
        show(&open, args.json)?;
        let Some(seconds) = args.watch else {
            return Ok(());
        };
        std::thread::sleep(Duration::from_secs(seconds));
    }
}

fn is_asked_for(args: &CountersArgs, name: &str) -> bool {
    args.device.as_ref().is_none_or(|asked| asked == name)
}

/// Prints all counters of all devices once.
fn show(devices: &[Context], json: bool) -> Result<(), Failure> {
    let text = if json {
        let all: Map<String, Value> = devices.iter().map(as_json).collect();
        Value::Object(all).to_string() + "\n"
    } else {
        devices.iter().map(as_text).collect()
    };
    let mut out = std::io::stdout();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).doing("printing the counters")
}

fn as_json(context: &Context) -> (String, Value) {
    let counters: Map<String, Value> =
        context.counters().iter().map(|(name, value)| (name.to_owned(), json!(value))).collect();
    (context.device().name.clone(), Value::Object(counters))
}

fn as_text(context: &Context) -> String {
    let mut text = format!("{}\n", context.device().name);
    for (name, value) in context.counters().iter() {
        // Writing to a string does not fail.
        let _ = writeln!(text, "    {name:<24}{value}");
    }
    text
}
