use super::*;
use crate::handshake::PATIENCE;
use crate::join::{JoinError, join, join_as};
use std::io::{Read, Write};
use std::sync::Mutex;
use std::time::Instant;
use uniference_protocol::hello::LITTLE_ENDIAN;

const SOON: Duration = Duration::from_secs(20);

fn token() -> Token {
    Token::new(b"a token of the tests")
}

/// A door that waits for worker `a`, the door's address, and its log.
fn open() -> (Door, String, Arc<Mutex<Vec<String>>>) {
    let said: Arc<Mutex<Vec<String>>> = Arc::default();
    let heard = said.clone();
    let door = Door::open("127.0.0.1:0", token(), move |line| heard.lock().unwrap().push(line.to_owned())).unwrap();
    door.expect(["a".to_owned()]);
    let address = door.address().to_string();
    (door, address, said)
}

fn logged(said: &Mutex<Vec<String>>, words: &str) {
    let deadline = Instant::now() + SOON;
    while !said.lock().unwrap().iter().any(|line| line.contains(words)) {
        assert!(Instant::now() < deadline, "{words:?} is not in {:?}", said.lock().unwrap());
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn both_sides_hear_each_other_and_the_end() {
    let (door, address, _) = open();
    let (stream, mut receiver) = join(&address, &token(), "a").unwrap();
    let mut joined = door.wait(SOON).unwrap();
    assert_eq!(joined.name, "a");
    let long = vec![7; 1 << 20];
    let sender = thread::spawn({
        let (stream, long) = (stream.clone(), long.clone());
        move || {
            stream.send(&[b"one", &long[..]]).unwrap();
            stream.send(&[]).unwrap();
            stream.finish();
        }
    });
    let receiver_of_driver = &mut joined.receiver;
    let first = receiver_of_driver.receive(2 << 20, SOON).unwrap().unwrap().to_vec();
    assert_eq!((&first[..3], first[3..] == *long), (&b"one"[..], true));
    assert_eq!(receiver_of_driver.receive(2 << 20, SOON).unwrap(), Some(&[][..]));
    assert_eq!(receiver_of_driver.receive(2 << 20, SOON).unwrap(), None);
    sender.join().unwrap();
    joined.stream.send(&[b"two"]).unwrap();
    assert_eq!(receiver.receive(3, SOON).unwrap(), Some(&b"two"[..]));
}

#[test]
fn messages_are_bounded_and_silence_and_cuts_are_errors() {
    let (door, address, _) = open();
    let (stream, mut receiver) = join(&address, &token(), "a").unwrap();
    let mut joined = door.wait(SOON).unwrap();
    // Half-open connection: neither side sends.
    let silent = receiver.receive(100, Duration::from_millis(50)).unwrap_err();
    assert_eq!(silent.kind(), io::ErrorKind::TimedOut);
    stream.send(&[&[0; 101]]).unwrap();
    assert_eq!(joined.receiver.receive(100, SOON).unwrap_err().kind(), io::ErrorKind::InvalidData);
    joined.stream.close();
    // The connection ends without a close notification, which may be a failure or an end, but is never a message.
    assert!(!matches!(receiver.receive(100, SOON), Ok(Some(_))));
}

#[test]
fn a_wrong_token_ends_the_worker_and_the_door_stays_open() {
    let (door, address, said) = open();
    let error = join(&address, &Token::new(b"another token"), "a").map(drop).unwrap_err();
    assert!(matches!(error, JoinError::Refused { why: Refusal::Token, .. }), "{error:?}");
    let text = error.to_string();
    assert!(text.contains("refuses worker a: the token is wrong\nhint: "), "{text}");
    logged(&said, "the token is wrong");
    join(&address, &token(), "a").unwrap();
    assert_eq!(door.wait(SOON).unwrap().name, "a");
}

#[test]
fn the_second_of_one_name_is_refused_and_one_that_is_not_expected_may_come_again() {
    let (door, address, said) = open();
    let _first = join(&address, &token(), "a").unwrap();
    door.wait(SOON).unwrap();
    let second = join(&address, &token(), "a").map(drop).unwrap_err();
    assert!(matches!(second, JoinError::Refused { why: Refusal::Taken, .. }), "{second:?}");
    let other = join(&address, &token(), "b").map(drop).unwrap_err();
    assert!(matches!(other, JoinError::Unwanted(Refusal::Unknown)), "{other:?}");
    logged(&said, "worker b at 127.0.0.1");
    door.dismiss();
    assert!(matches!(join(&address, &token(), "a").map(drop).unwrap_err(), JoinError::Unwanted(_)));
}

#[test]
fn another_version_and_another_byte_order_are_named_on_both_sides() {
    let (_door, address, said) = open();
    let ours = Hello::new(false);
    let newer = Hello { version: ours.version + 1, ..ours };
    let error = join_as(&address, &token(), "a", newer).map(drop).unwrap_err().to_string();
    assert!(error.contains("of the protocol") && error.contains("\nhint: install the same version"), "{error}");
    logged(&said, "of the protocol");
    let swapped = Hello { capabilities: ours.capabilities ^ LITTLE_ENDIAN, ..ours };
    let error = join_as(&address, &token(), "a", swapped).map(drop).unwrap_err().to_string();
    assert!(error.contains("order the bytes of numbers differently"), "{error}");
    logged(&said, "order the bytes of numbers differently");
}

#[test]
fn garbage_cut_and_silent_connections_keep_nobody_out() {
    let (door, address, said) = open();
    let mut garbage = TcpStream::connect(&address).unwrap();
    garbage.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    logged(&said, "refused 127.0.0.1");
    drop(TcpStream::connect(&address).unwrap());
    let silent: Vec<TcpStream> = (0..2 * MOST_PENDING).map(|_| TcpStream::connect(&address).unwrap()).collect();
    // Only the beginning of a TLS handshake: the header of a record that never comes.
    (&silent[2 * MOST_PENDING - 1]).write_all(&[22, 3, 1, 2, 0]).unwrap();
    join(&address, &token(), "a").unwrap();
    assert_eq!(door.wait(SOON).unwrap().name, "a");
    // The oldest connections were closed at once; the others are closed at their timeout.
    let started = Instant::now();
    for mut socket in silent {
        socket.set_read_timeout(Some(SOON)).unwrap();
        let _ = socket.read_to_end(&mut Vec::new());
    }
    assert!(started.elapsed() < PATIENCE + Duration::from_secs(5), "{:?}", started.elapsed());
}

#[test]
fn somebody_in_the_middle_passes_no_proof_on() {
    // The impostor runs a driver and does not know the token: the worker's proof is bound to its connection with the
    // impostor.
    let (door, real, said) = open();
    let impostor = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = impostor.local_addr().unwrap().to_string();
    let middle = thread::spawn(move || {
        let (socket, _) = impostor.accept().unwrap();
        let other = Token::new(b"what the impostor knows");
        // The impostor admits every worker, as if it knew the token.
        handshake::admit_anybody(socket, &Identity::new(), &other, Hello::new(false))
    });
    let error = join(&address, &token(), "a").map(drop).unwrap_err();
    assert!(matches!(&error, JoinError::Imposter { why, .. } if why.contains("does not know the token")), "{error:?}");
    let proof = middle.join().unwrap();
    let (stream, mut receiver) = handshake::claim_with(&real, Hello::new(false), "a", proof);
    assert!(stream.send(&[b"x"]).is_ok());
    assert!(!matches!(receiver.receive(100, SOON), Ok(Some(_))));
    logged(&said, "the token is wrong");
    assert!(door.wait(Duration::from_millis(50)).is_none());
}

#[test]
fn a_flood_of_strangers_is_logged_in_a_bounded_number_of_lines() {
    let said: Arc<Mutex<Vec<String>>> = Arc::default();
    let heard = said.clone();
    let refusals = Refusals { log: Box::new(move |line| heard.lock().unwrap().push(line.to_owned())), count: 0.into() };
    (0..100_000).for_each(|_| refusals.note("10.0.0.1:7", &"the token is wrong"));
    drop(refusals);
    let said = said.lock().unwrap();
    // The log has the first 20 refusals, the 32nd to the 65,536th (12 powers of two), and the total.
    assert_eq!(said.len() as u64, LISTED + 12 + 1);
    assert_eq!(said[0], "refused 10.0.0.1:7: the token is wrong");
    assert!(said[20].ends_with("(32 connections refused so far, not all are listed)"), "{}", said[20]);
    assert_eq!(said.last().unwrap(), "refused 100000 connections in all, not all are listed");
}
