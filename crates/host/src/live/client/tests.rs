//! A rank whose driver is written down here.

use super::super::arena::{self, Layout};
use super::*;
use std::thread;

const LAYOUT: Layout = Layout { part: 1 << 20, total: 1 << 20, retain: 0 };

/// A rank whose compute is measured, in group 0 with another one, and the driver's end of its socket.
fn rank() -> (Client, UnixStream) {
    rank_that_is(true)
}

fn rank_that_is(measure: bool) -> (Client, UnixStream) {
    let (theirs, ours) = UnixStream::pair().unwrap();
    let file = arena::create(LAYOUT).unwrap();
    let hello = Hello {
        measure,
        cores: 1,
        arena_bytes: LAYOUT.total,
        staging: (0, LAYOUT.part),
        retain_bytes: 0,
        processor: None,
    };
    let mut frame = Vec::new();
    protocol::encode(&hello, &mut frame);
    protocol::write_with_fds(&ours, &frame, &[file.as_fd(), file.as_fd()]).unwrap();
    let client = Client::adopt(theirs, 0, 2).unwrap();
    client.shared().groups.insert(0, Membership { size: 2, me: 0 });
    (client, ours)
}

/// Answers each batch that asks with the next of `replies`; returns all that was said.
fn driver(socket: UnixStream, replies: Vec<Reply>) -> thread::JoinHandle<Vec<Op>> {
    thread::spawn(move || {
        let (mut frames, mut said) = (FrameBuffer::default(), Vec::new());
        let mut replies = replies.into_iter();
        while let Ok(Batch { ops, .. }) = frames.read(&socket) {
            let asks = ops.last().is_some_and(Op::asks);
            said.extend(ops);
            if asks {
                let mut frame = Vec::new();
                protocol::encode(&replies.next().expect("as many replies as questions"), &mut frame);
                protocol::write(&socket, &frame).unwrap();
            }
        }
        said
    })
}

fn reply(answer: Answer) -> Reply {
    Reply { now: SimTime::ZERO, freed: Vec::new(), over: Vec::new(), answer }
}

fn now(ps: u64) -> Answer {
    Answer::Now(SimTime::from_ps(ps), SimDuration::ZERO)
}

fn barrier() -> Collective {
    let kind = uniference_sim::program::CollectiveKind::Barrier;
    let dtype = uniference_sim::program::DType::UInt8;
    Collective { kind, dtype, reduce: None, root: None, shape: uniference_sim::program::Shape::Even(0) }
}

fn end(client: Client) {
    LINKS.with_borrow_mut(|links| links.retain(|link| link.client != client.id));
}

#[test]
fn an_asynchronous_operation_travels_with_the_next_question() {
    let (client, socket) = rank();
    let driver = driver(socket, vec![reply(Answer::Complete(vec![(0, Fetched::default()), (1, Fetched::default())]))]);
    let first = client.collective(GroupId(0), barrier(), None, "a.py:1").unwrap();
    let second = client.collective(GroupId(0), barrier(), None, "a.py:1").unwrap();
    assert_eq!(client.wait(&[first, second], None, false, "a.py:2").unwrap(), Some(vec![0, 1]));
    // What is known to be complete is not asked for again.
    assert_eq!(client.wait(&[second], None, false, "a.py:3").unwrap(), Some(vec![1]));
    end(client);
    let said = driver.join().unwrap();
    let issued = said.iter().filter(|op| matches!(op, Op::Issue { .. })).count();
    let lines: Vec<_> = said.iter().filter(|op| matches!(op, Op::Site(_))).collect();
    assert_eq!((issued, lines.len()), (2, 2));
}

#[test]
fn a_call_that_blocks_is_one_question() {
    let (client, socket) = rank();
    let complete = Answer::Complete(vec![(0, Fetched::default())]);
    let driver = driver(socket, vec![reply(complete), reply(now(0))]);
    let blocking = Blocking { op: barrier(), input: None, output: &[], timeout: None, site: "a.py:1" };
    assert_eq!(client.run(GroupId(0), blocking).unwrap(), Ran::Delivered);
    client.now().unwrap();
    end(client);
    let said = driver.join().unwrap();
    assert!(matches!(said[..], [Op::Site(_), Op::Issue { .. }, Op::Wait { .. }, Op::Release(0), Op::Now]), "{said:?}");
}

#[test]
fn a_large_input_follows_the_question_where_nothing_is_measured() {
    let (client, socket) = rank_that_is(false);
    let driver = driver(socket, vec![reply(Answer::TimedOut)]);
    let mut data = vec![7_u8; MANY as usize];
    // SAFETY: the data outlives the region.
    #[allow(unsafe_code)]
    let input = unsafe { [Region::new(data.as_mut_ptr() as usize, data.len())] };
    let blocking = Blocking { op: barrier(), input: Some(&input), output: &[], timeout: None, site: "a.py:1" };
    assert_eq!(client.run(GroupId(0), blocking).unwrap(), Ran::TimedOut);
    client.flush().unwrap();
    end(client);
    let said = driver.join().unwrap();
    let [Op::Site(_), Op::Issue { filled: false, .. }, Op::Wait { .. }, Op::Filled(0), Op::Release(0)] = said[..]
    else {
        panic!("{said:?}")
    };
}

#[test]
fn only_the_programs_compute_is_charged() {
    let (client, socket) = rank();
    let driver = driver(socket, vec![reply(Answer::Go), reply(now(0)), reply(now(0))]);
    let spin = |ns: u64| {
        let until = clock_ns(ClockId::ThreadCPUTime) + ns;
        while clock_ns(ClockId::ThreadCPUTime) < until {}
    };
    spin(20_000_000);
    client.start().unwrap();
    spin(30_000_000);
    client.now().unwrap();
    client.enter();
    spin(40_000_000);
    client.leave();
    client.now().unwrap();
    end(client);
    let said = driver.join().unwrap();
    let computed =
        said.iter().filter_map(|op| if let Op::Compute(span) = op { Some(span.as_ps() / 1000) } else { None });
    let pieces: Vec<u64> = computed.collect();
    // 30 ms of the program, and what the other tests of this process use meanwhile; 20 ms before and 40 ms of ours are not in it.
    assert!(pieces[0] >= 30_000_000, "{pieces:?}");
}

#[test]
fn a_full_arena_is_an_error_and_freed_rooms_come_back() {
    let (client, socket) = rank();
    let freed = Reply { freed: vec![0], ..reply(Answer::Go) };
    let driver = driver(socket, vec![freed]);
    let mut data = vec![0_u8; 1 << 20];
    // SAFETY: the data outlives both regions.
    #[allow(unsafe_code)]
    let (all, one) = unsafe {
        let address = data.as_mut_ptr() as usize;
        (Region::new(address, data.len()), Region::new(address, 1))
    };
    assert_eq!(client.stage(&[all]).unwrap(), 0);
    assert!(matches!(client.stage(&[one]), Err(ClientError::ArenaFull { rank: 0, bytes: 1 })));
    client.sleep(Span::For(SimDuration::from_us(1))).unwrap();
    assert_eq!(client.stage(&[all]).unwrap(), 0);
    end(client);
    driver.join().unwrap();
}

#[test]
fn each_thread_is_a_task_of_its_own() {
    let (client, socket) = rank();
    let opened = thread::scope(|scope| {
        let opened = scope.spawn(move || {
            let mut frames = FrameBuffer::default();
            let batch: Batch = frames.read(&socket).unwrap();
            assert!(batch.opens_task);
            let task = UnixStream::from(frames.take_fd().unwrap());
            let asked: Batch = FrameBuffer::default().read(&task).unwrap();
            let mut frame = Vec::new();
            protocol::encode(&reply(now(9)), &mut frame);
            protocol::write(&task, &frame).unwrap();
            asked.ops
        });
        assert_eq!(scope.spawn(|| client.now().unwrap().0.as_ps()).join().unwrap(), 9);
        opened.join().unwrap()
    });
    assert_eq!(opened, [Op::Now]);
}
