//! Writes into the memory of another rank, which makes no call.

use crate::support::*;
use uniference_sim::cluster::{Handshake, Protocol};
use uniference_sim::ids::{Handle, RankId};
use uniference_sim::program::{CallOp, Reply};
use uniference_sim::time::{Bytes, SimTime};

/// Time until the writer has the acknowledgement: n * beta + 2 * alpha.
fn round(bytes: u64) -> u64 {
    bytes * PS_PER_BYTE + 2 * LATENCY_PS
}

#[test]
fn a_write_is_complete_when_the_writer_has_heard_that_it_is_there() {
    let outcomes = run(&switch(2), vec![vec![write(1, 1000), wait(0)], vec![]]);
    assert_eq!(outcomes.finish(0), round(1000));
    assert_eq!(outcomes.finish(1), 0);
}

#[test]
fn what_a_library_does_to_messages_it_does_not_do_to_writes() {
    let mut cluster = switch(2);
    let handshake = Some(Handshake { control: Bytes(16), preamble: Bytes(40), eager: None });
    cluster.backend.protocol = Protocol { handshake, connections_per_group: true, window: None, ..busy() };
    let outcomes = run(&cluster, vec![vec![write(1, 1000), wait(0)], vec![]]);
    assert_eq!(outcomes.finish(0), round(1000));
}

#[test]
fn writers_share_the_way_to_their_destination() {
    let writer = || vec![write(2, 1000), wait(0)];
    let outcomes = run(&switch(3), vec![writer(), writer(), vec![]]);
    assert_eq!((outcomes.finish(0), outcomes.finish(1)), (round(2000), round(2000)));
}

#[test]
fn writes_of_a_rank_go_one_after_the_other() {
    let outcomes = run(&switch(2), vec![vec![write(1, 1000), write(1, 500), wait(0), wait(1)], vec![]]);
    assert_eq!((outcomes.at(0, 2), outcomes.at(0, 3)), (round(1000), round(1500)));
}

#[test]
fn a_free_write_takes_no_time() {
    let mut cluster = switch(2);
    cluster.backend.free.operations = [CallOp::WRITE].into();
    let outcomes = run(&cluster, vec![vec![write(1, 1000), wait(0)], vec![]]);
    assert_eq!(outcomes.finish(0), 0);
}

#[test]
fn a_write_to_a_rank_that_crashes_fails() {
    let mut cluster = switch(2);
    cluster.devices[1].crash = Some(SimTime::from_ps(1));
    let outcomes = run(&cluster, vec![vec![write(1, 1000), wait(0)], vec![compute(1_000_000_000), wait(0)]]);
    let failed = vec![(Handle(0), RankId(1))];
    assert_eq!(outcomes.reply(0, 1), Reply::Failed { complete: vec![Handle(0)], failed });
}
