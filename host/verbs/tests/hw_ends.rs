//! Everything that was made of a device that is not ours ends, in whatever order handles go.
//!
//! # Safety
//!
//! The double's own function is asked for by its name, and has the type that it is used as; the rest is
//! in `hw/fake.rs`.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may fail")]

#[path = "hw/fake.rs"]
#[expect(dead_code, reason = "the other tests use all of it")]
mod fake;

use adverb_verbs::{Access, CqConfig, QpConfig, SrqConfig, Ud, Work};
use std::ffi::CString;

/// Objects of the double that have not ended.
fn objects() -> i32 {
    let path = CString::new(fake::double().into_os_string().into_encoded_bytes()).unwrap();
    // SAFETY: a name that ends with a zero, of a library that is loaded already.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
    // SAFETY: a library that is open, and a name that ends with a zero.
    let found = unsafe { libc::dlsym(handle, c"fake_objects".as_ptr()) };
    assert!(!found.is_null());
    // SAFETY: the double has this function, with this type.
    let count =
        unsafe { std::mem::transmute::<*mut libc::c_void, extern "C" fn() -> libc::c_int>(found) };
    count()
}

#[test]
fn nothing_is_left_whatever_goes_first() {
    if std::env::var_os("ADVERB_TEST_DEVICE").is_some() {
        return; // Real devices do not tell.
    }
    for turn in 0..4 {
        let context = fake::open();
        let channel = context.create_comp_channel().unwrap();
        let config = CqConfig::new(64).channel(&channel);
        let (pd, cq) = (context.alloc_pd(), context.create_cq_with(&config).unwrap());
        let srq = pd.create_srq(&SrqConfig::new(4)).unwrap();
        let a = pd.create_qp(&QpConfig::new(&cq)).unwrap();
        let b = pd.create_qp(&QpConfig::new(&cq).srq(&srq)).unwrap();
        let ud = pd.create_qp_of::<Ud>(&QpConfig::new(&cq)).unwrap();
        let [here, there] = [&a, &b].map(|qp| qp.address().unwrap());
        a.connect(there).unwrap();
        b.connect(here).unwrap();
        let mr = pd.allocate(64, Access::ALL).unwrap();
        // Outstanding, and never received.
        a.post(Work::recv(mr.slice(0, 8).unwrap())).unwrap();
        srq.post(Work::recv(pd.buffer(8).unwrap())).unwrap();
        assert!(objects() >= 9);
        match turn {
            0 => drop((context, channel, pd, cq, srq, a, b, ud, mr)),
            1 => drop((mr, ud, b, a, srq, cq, pd, channel, context)),
            2 => drop((cq, a, context, mr, pd, b, channel, srq, ud)),
            _ => drop((srq, channel, ud, context, b, pd, mr, a, cq)),
        }
        assert_eq!(objects(), 0, "turn {turn}");
    }
}
