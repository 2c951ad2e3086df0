//! Records in memory that two processes of one host share.

pub(crate) mod bell;
pub(crate) mod direct;
pub(crate) mod lane;
pub(crate) mod ring;
pub(crate) mod usher;

use crate::sync;
