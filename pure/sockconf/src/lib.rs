//! How a program's sockets are to be treated: rules, parameters, profiles.
//!
//! Two kinds of text say it. *Rules*, one a line, in the grammar of `libvma.conf`, say which sockets
//! are accelerated ([`Rules`]). *Parameters*, by name and value, from the environment or from a file,
//! say how ([`Settings`]); [`PARAMETERS`] lists every one with its range, default and effect. Nothing
//! here reads a file or the environment: the caller brings the text, and gets values, and warnings
//! for what could not be understood. No text makes a program fail.
//!
//! Read the manual of VMA, §7, before changing names, defaults or the grammar.

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod banner;
mod glob;
mod nearest;
mod pace;
mod parameter;
mod profile;
mod rule;
mod rules;
mod settings;
mod table;

pub use crate::banner::{Level, banner};
pub use crate::glob::matches;
pub use crate::nearest::nearest;
pub use crate::pace::{Discount, Grant, Load, Pace, TICKS};
pub use crate::parameter::{Effect, Kind, Parameter, Value, processors};
pub use crate::profile::Profile;
pub use crate::rule::{Addresses, Ports, Role, Rule, RuleError, Side, Socket, Transport};
pub use crate::rules::{DEFAULT_FILE, Rules};
pub use crate::settings::{Origin, Setting, Settings, Warning};
pub use crate::table::PARAMETERS;
