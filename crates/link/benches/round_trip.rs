//! Round-trip time of a message to a worker: wall-clock time over this machine's loopback, encrypted as in a run,
//! between two threads.
//! `cargo bench -p uniference-link --bench round_trip [-- ROUNDS]`

use std::thread;
use std::time::{Duration, Instant};
use uniference_link::door::Door;
use uniference_link::join::join;
use uniference_link::token::Token;

/// Message length: about the frame of a small call.
const BYTES: usize = 64;

/// Rounds before the measurement.
const WARM_UP: usize = 100;

const PATIENCE: Duration = Duration::from_secs(10);

fn main() {
    let rounds = std::env::args().skip(1).find_map(|arg| arg.parse().ok()).unwrap_or(5_000);
    let token = Token::new(b"a token of the benchmark");
    let door = Door::open("127.0.0.1:0", token.clone(), |refused| eprintln!("{refused}")).expect("it can listen");
    door.expect(["worker".to_owned()]);
    let address = door.address().to_string();
    let echo = thread::spawn(move || {
        let (stream, mut receiver) = join(&address, &token, "worker").expect("the door is open");
        while let Some(message) = receiver.receive(BYTES, PATIENCE).expect("the other side speaks") {
            stream.send(&[message]).expect("the other side listens");
        }
    });
    let mut joined = door.wait(PATIENCE).expect("it joins");
    let mut took: Vec<Duration> = (0..WARM_UP + rounds)
        .map(|_| {
            let start = Instant::now();
            joined.stream.send(&[&[7; BYTES]]).expect("the other side listens");
            joined.receiver.receive(BYTES, PATIENCE).expect("the other side speaks").expect("it goes on");
            start.elapsed()
        })
        .skip(WARM_UP)
        .collect();
    joined.stream.finish();
    echo.join().expect("it has heard the end");
    took.sort_unstable();
    let us = |part: f64| took[((took.len() - 1) as f64 * part) as usize].as_secs_f64() * 1e6;
    println!(
        "round trip of {BYTES} bytes over TLS on loopback: median {:.1} us, quartiles {:.1} and {:.1} us",
        us(0.5),
        us(0.25),
        us(0.75)
    );
}
