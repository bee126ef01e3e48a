//! Messages between two ranks: their arrival, the receives that they match, and the results of timeouts and polls.

use crate::support::*;
use uniference_sim::ids::Handle;
use uniference_sim::program::{Activity, CollectiveKind, POLL_COST, Reply, Request};
use uniference_sim::time::SimDuration;

#[test]
fn a_message_takes_its_bytes_and_one_latency() {
    // sender: n * beta; receiver: n * beta + alpha
    let outcomes = run(&switch(2), vec![vec![send(1, 0, 1000), wait(0)], vec![recv(Some(0), 0, 1000), wait(0)]]);
    assert_eq!(outcomes.finish(0), 1000 * PS_PER_BYTE);
    assert_eq!(outcomes.finish(1), 1000 * PS_PER_BYTE + LATENCY_PS);
}

#[test]
fn a_slow_receiver_finds_the_message_waiting() {
    let late = 50_000_000;
    let receiver = vec![compute(late), wait(0), recv(Some(0), 0, 1000), wait(1)];
    let outcomes = run(&switch(2), vec![vec![send(1, 0, 1000), wait(0)], receiver]);
    assert_eq!(outcomes.finish(1), late);
}

#[test]
fn messages_of_one_pair_keep_their_order_and_share_nothing() {
    // Two messages of n bytes on one stream: the second leaves after the first, at 2 n * beta.
    let sender = vec![send(1, 5, 1000), send(1, 6, 1000), wait(0), wait(1)];
    let receiver = vec![recv(Some(0), 6, 1000), recv(Some(0), 5, 1000), wait(1), wait(0)];
    let outcomes = run(&switch(2), vec![sender, receiver]);
    assert_eq!(outcomes.at(1, 2), 1000 * PS_PER_BYTE + LATENCY_PS);
    assert_eq!(outcomes.at(1, 3), 2000 * PS_PER_BYTE + LATENCY_PS);
}

#[test]
fn incast_shares_the_receivers_ingress() {
    // Two senders of n bytes each at half the rate: both arrive after 2 n * beta + alpha.
    let sender = || vec![send(2, 0, 1000), wait(0)];
    let receiver = vec![recv(Some(0), 0, 1000), recv(Some(1), 0, 1000), wait(0), wait(1)];
    let outcomes = run(&switch(3), vec![sender(), sender(), receiver]);
    assert_eq!(outcomes.finish(2), 2000 * PS_PER_BYTE + LATENCY_PS);
    assert_eq!(outcomes.finish(0), 2000 * PS_PER_BYTE);
}

#[test]
fn any_source_takes_the_first_that_arrives() {
    let slow = vec![compute(1_000_000), wait(0), send(2, 0, 10), wait(1)];
    let fast = vec![send(2, 0, 10), wait(0)];
    let receiver = vec![recv(None, 0, 10), wait(0), recv(None, 0, 10), wait(1)];
    let outcomes = run(&switch(3), vec![slow, fast, receiver]);
    assert_eq!(outcomes.at(2, 1), 10 * PS_PER_BYTE + LATENCY_PS);
    assert_eq!(outcomes.at(2, 3), 1_000_000 + 10 * PS_PER_BYTE + LATENCY_PS);
}

#[test]
fn a_time_out_passes_in_virtual_time_and_the_receive_stays() {
    let timeout = Some(SimDuration::from_ps(2_000_000));
    let hasty = Request::Wait { handles: vec![Handle(0)], any: false, timeout, site: Default::default() };
    let outcomes = run(&switch(2), vec![vec![send(1, 0, 1000), wait(0)], vec![recv(Some(0), 0, 1000), hasty, wait(0)]]);
    assert_eq!((outcomes.at(1, 1), outcomes.reply(1, 1)), (2_000_000, Reply::TimedOut));
    assert_eq!(outcomes.at(1, 2), 1000 * PS_PER_BYTE + LATENCY_PS);
}

#[test]
fn a_message_that_arrives_as_the_time_out_passes_was_in_time() {
    let timeout = Some(SimDuration::from_ps(1000 * PS_PER_BYTE + LATENCY_PS));
    let exact = Request::Wait { handles: vec![Handle(0)], any: false, timeout, site: Default::default() };
    let outcomes = run(&switch(2), vec![vec![send(1, 0, 1000), wait(0)], vec![recv(Some(0), 0, 1000), exact]]);
    assert_eq!(outcomes.reply(1, 1), Reply::Complete(vec![Handle(0)]));
}

#[test]
fn a_busy_wait_makes_progress_and_never_sees_the_future() {
    // Polls of 1 us each: the sixth poll sees the message (at 6 us), neither an earlier nor a much later one.
    let poll =
        || Request::Wait { handles: vec![Handle(0)], any: false, timeout: Some(POLL_COST), site: Default::default() };
    let mut receiver = vec![recv(Some(0), 0, 1000)];
    receiver.extend((0..10).map(|_| poll()));
    let outcomes = run(&switch(2), vec![vec![send(1, 0, 1000), wait(0)], receiver]);
    let seen = (1..=10).find(|request| outcomes.reply(1, *request) != Reply::TimedOut).unwrap();
    assert_eq!(seen, 6);
    assert_eq!(outcomes.at(1, seen), 1000 * PS_PER_BYTE + LATENCY_PS);
}

#[test]
fn reading_the_clock_costs_a_microsecond_in_older_records_and_50_nanoseconds_since() {
    let outcomes = run(&switch(1), vec![vec![Request::Now, Request::Now, Request::Look]]);
    assert_eq!((outcomes.at(0, 1), outcomes.at(0, 2)), (2_000_000, 2_050_000));
    assert_eq!(outcomes.statistics.ranks()[0].times.compute, SimDuration::from_ns(2_050));
}

#[test]
fn sleep_is_idle_and_late_peers_are_told_apart() {
    // The receiver waits from 0; the sender enters at 3 us, and n * beta + alpha = 6 us follow: 9 exposed, 3 of them
    // late.
    let sender = vec![issue(Activity::Sleep(SimDuration::from_us(3))), wait(0), send(1, 0, 1000), wait(1)];
    let outcomes = run(&switch(2), vec![sender, vec![recv(Some(0), 0, 1000), wait(0)]]);
    let [sender, receiver] = [0, 1].map(|rank| outcomes.statistics.ranks()[rank].times);
    assert_eq!(sender.idle, SimDuration::from_us(3));
    assert_eq!((receiver.exposed, receiver.late_peer), (SimDuration::from_us(9), SimDuration::from_us(3)));
    assert_eq!((receiver.no_data, sender.no_data), (SimDuration::from_us(3), SimDuration::ZERO));
}

#[test]
fn a_collective_lacks_no_data() {
    // Rank 0 waits for 3 us for its late peer, but not for a message.
    let barrier = || collective(CollectiveKind::Barrier, 0);
    let late = vec![issue(Activity::Sleep(SimDuration::from_us(3))), wait(0), barrier(), wait(1)];
    let outcomes = run(&switch(2), vec![vec![barrier(), wait(0)], late]);
    let times = outcomes.statistics.ranks()[0].times;
    assert_eq!((times.late_peer, times.no_data), (SimDuration::from_us(3), SimDuration::ZERO));
}

#[test]
fn a_receive_that_gives_up_lacked_data_until_it_was_sent() {
    // The send is issued at 3 us; the timeouts pass at 2 and 4 us, the message arrives at 9 us.
    let hasty = || Request::Wait {
        handles: vec![Handle(0)],
        any: false,
        timeout: Some(SimDuration::from_us(2)),
        site: Default::default(),
    };
    let sender = vec![issue(Activity::Sleep(SimDuration::from_us(3))), wait(0), send(1, 0, 1000), wait(1)];
    let outcomes = run(&switch(2), vec![sender, vec![recv(Some(0), 0, 1000), hasty(), hasty(), wait(0)]]);
    // The peer is late until the send is issued, also for waits that are given up: 2 us of the first, 1 us of the
    // second, nothing of the last.
    let times = outcomes.statistics.ranks()[1].times;
    assert_eq!(times.exposed, SimDuration::from_us(9));
    assert_eq!((times.late_peer, times.no_data), (SimDuration::from_us(3), SimDuration::from_us(3)));
}
