//! Programs and options that are tried, a line each: what it is, and the command of both sides.

/// What a pair of processes runs. `-p`, and for the client the server's address, come behind.
pub(crate) const PERFTEST: [&str; 30] = [
    "ib_send_lat",
    "ib_write_lat",
    "ib_read_lat",
    "ib_atomic_lat",
    "ib_send_bw",
    "ib_write_bw",
    "ib_read_bw",
    "ib_atomic_bw",
    "ib_atomic_bw -A CMP_AND_SWAP",
    "ib_send_lat -c UD",
    "ib_send_bw -c UD",
    "ib_send_lat -c UC",
    "ib_send_bw -c UC",
    "ib_write_lat -c UC",
    "ib_write_bw -c UC",
    "ib_send_bw -c XRC",
    "ib_write_bw -c XRC",
    "ib_send_lat -c XRC",
    "ib_read_bw -c XRC",
    "ib_atomic_lat -c XRC",
    "ib_send_bw -e",
    "ib_send_lat -e",
    "ib_read_bw -e",
    "ib_send_bw -b",
    "ib_write_bw -b",
    "ib_write_bw -q 4",
    "ib_send_bw --use-srq -r 100",
    "ib_send_lat -I 128 -s 100",
    "ib_write_bw -l 8",
    "ib_read_bw -s 1000000",
];

/// All sizes from 2 bytes to 8 MiB: some seconds each, most of which perftest takes to measure the processor's clock. In
/// turn through shared memory and between two network namespaces.
pub(crate) const ALL_SIZES: [&str; 6] = [
    "ib_send_lat -a -n 10",
    "ib_send_bw -a -n 10",
    "ib_write_bw -a -n 10",
    "ib_write_lat -a -n 10",
    "ib_read_lat -a -n 10",
    "ib_read_bw -a -n 10",
];

/// Other transports and options of the same operations: each in one place, and in all when the matrix is written.
pub(crate) const PERFTEST_MORE: [&str; 27] = [
    "ib_write_lat -c XRC",
    "ib_read_lat -c XRC",
    "ib_atomic_bw -c XRC",
    "ib_atomic_lat -A CMP_AND_SWAP",
    "ib_atomic_bw -q 4 -b",
    "ib_read_bw -b -l 8",
    "ib_send_bw -c UC -e -l 8",
    "ib_send_bw -c UD -b -q 4",
    "ib_send_bw -c UD --use-srq",
    "ib_send_lat -c UD -e",
    "ib_read_lat -e",
    "ib_atomic_bw -e",
    "ib_atomic_lat -e",
    "ib_send_bw -c XRC -e",
    "ib_send_bw -q 4",
    "ib_read_bw -q 4",
    "ib_atomic_bw -q 4",
    "ib_send_bw -c XRC -q 4",
    "ib_write_bw -c UC -b -q 4",
    "ib_read_bw -c XRC -b",
    "ib_send_lat --use-srq",
    "ib_send_bw -c UC --use-srq",
    "ib_send_bw -I 64 -s 64",
    "ib_write_bw -I 64 -s 64",
    "ib_write_lat -I 64 -s 64",
    "ib_send_bw -l 8",
    "ib_atomic_bw -l 8",
];

/// What `ucx_perftest` measures, over each of its two transports.
pub(crate) const UCX: [&str; 12] = [
    "tag_lat",
    "tag_bw",
    "ucp_put_lat",
    "ucp_put_bw",
    "ucp_get",
    "ucp_add",
    "ucp_fadd",
    "ucp_swap",
    "ucp_cswap",
    "stream_lat",
    "stream_bw",
    "ucp_am_bw",
];
pub(crate) const UCX_TRANSPORTS: [&str; 2] = ["rc_verbs,ud_verbs:aux,self", "ud_verbs,self"];
