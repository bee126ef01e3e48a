//! A rank whose driver is scripted in the tests.

use super::calls::MANY;
use super::*;
use std::cell::Cell;
use std::thread;
use uniference_protocol::arena::{self, Layout};
use uniference_protocol::hello::VERSION;
use uniference_protocol::wire::write_with_fds;
use uniference_sim::program::Mark;

const LAYOUT: Layout = Layout { part: 1 << 20, total: 1 << 20, retain: 0 };

/// A rank with measured compute, in group 0 together with another one, and the driver's end of its socket.
fn rank() -> (Client, UnixWire) {
    rank_whose(Compute::Measured)
}

fn rank_whose(compute: Compute) -> (Client, UnixWire) {
    let (theirs, ours) = UnixStream::pair().unwrap();
    let file = arena::create(LAYOUT).unwrap();
    let welcome = Welcome {
        compute,
        cores: 1,
        arena_bytes: LAYOUT.total,
        staging: (0, LAYOUT.part),
        retain_bytes: 0,
        processor: None,
    };
    let mut frame = Vec::new();
    frame::encode(&Hello::new(true), &mut frame);
    frame::encode(&welcome, &mut frame);
    write_with_fds(&ours, &frame, &[file.as_fd(), file.as_fd()]).unwrap();
    let client = Client::adopt(theirs, 0, 2).unwrap();
    let ours = UnixWire::of_driver(ours);
    Hello::new(true).hear(&mut FrameBuffer::default(), &ours).unwrap();
    client.shared().groups.insert(0, Membership { size: 2, me: 0, closed: false });
    (client, ours)
}

/// Answers each batch with a request by the next of `replies`; returns all operations received.
fn driver(socket: UnixWire, replies: Vec<Reply>) -> thread::JoinHandle<Vec<Op>> {
    thread::spawn(move || {
        let (mut frames, mut said) = (FrameBuffer::default(), Vec::new());
        let mut replies = replies.into_iter();
        while let Ok(Batch { ops, .. }) = frames.read(&socket) {
            let asks = ops.last().is_some_and(Op::asks);
            said.extend(ops);
            if asks {
                let mut frame = Vec::new();
                frame::encode(&replies.next().expect("as many replies as questions"), &mut frame);
                socket.write(&frame).unwrap();
            }
        }
        said
    })
}

fn reply(answer: Answer) -> Reply {
    Reply { now: SimTime::ZERO, asked: SimTime::ZERO, freed: Vec::new(), over: Vec::new(), failed: Vec::new(), answer }
}

fn now(ps: u64) -> Answer {
    Answer::Now(SimTime::from_ps(ps), SimDuration::ZERO)
}

fn barrier() -> Collective {
    let kind = uniference_sim::program::CollectiveKind::Barrier;
    let dtype = uniference_sim::program::DType::UInt8;
    Collective { kind, dtype, reduce: None, root: None, shape: uniference_sim::program::Shape::Even(0), kernel: None }
}

fn end(client: Client) {
    LINKS.with_borrow_mut(|links| links.retain(|link| link.client != client.id));
}

fn names(at: u64, entries: &[u8]) -> Op {
    Op::Dictionary { process: 0, at, entries: entries.to_vec() }
}

#[test]
fn an_asynchronous_operation_travels_with_the_next_question() {
    let (client, socket) = rank();
    let driver = driver(socket, vec![reply(Answer::Complete(vec![(0, Fetched::default()), (1, Fetched::default())]))]);
    let first = client.collective(GroupId(0), barrier(), None, "a.py:1").unwrap();
    let second = client.collective(GroupId(0), barrier(), None, "a.py:1").unwrap();
    assert_eq!(client.wait(&[first, second], None, false, "a.py:2").unwrap(), Some(vec![0, 1]));
    // The client does not send a request for operations that it knows to be complete.
    assert_eq!(client.wait(&[second], None, false, "a.py:3").unwrap(), Some(vec![1]));
    end(client);
    let said = driver.join().unwrap();
    let issued = said.iter().filter(|op| matches!(op, Op::Issue { .. })).count();
    let lines: Vec<_> = said.iter().filter(|op| matches!(op, Op::Site(_))).collect();
    assert_eq!((issued, lines.len()), (2, 2));
}

/// The line of the other thread's call becomes a line of the sending thread.
#[test]
fn what_joint_threads_say_is_of_the_one_that_asks_next() {
    let (client, socket) = rank();
    let driver = driver(socket, vec![reply(now(0))]);
    client.join_threads();
    client.mark(Mark::End).unwrap();
    std::thread::scope(|scope| {
        let call = || client.collective(GroupId(0), barrier(), None, "b.py:7").unwrap();
        scope.spawn(call).join().unwrap();
    });
    client.release(0).unwrap();
    client.now().unwrap();
    end(client);
    let said = driver.join().unwrap();
    let [Op::Mark(_), Op::Site(line), Op::Issue { site: Site(0), .. }, Op::Release(0), Op::Now] = &said[..] else {
        panic!("{said:?}")
    };
    assert_eq!(line, "b.py:7");
}

thread_local! {
    static LOG: Cell<u64> = const { Cell::new(0) };
}

/// Threads write to the log with the number `LOG`.
struct Logs;

impl Capture for Logs {
    fn take(&self, _: &mut Vec<u8>, _: &mut Vec<u8>) -> u64 {
        0
    }

    fn log(&self) -> (u64, bool) {
        (LOG.get(), false)
    }

    fn inside(&self, _: bool) {}

    fn thread_started(&self) {}

    fn is_compiling(&self) -> bool {
        false
    }
}

/// One thread runs concurrently with others and has a log of its own; another one works for that thread.
#[test]
fn what_a_thread_says_goes_with_the_next_question_of_those_that_share_its_log() {
    let (client, socket) = rank_whose(Compute::None);
    let driver = driver(socket, vec![reply(now(0)), reply(now(0))]);
    client.capture_with(Box::new(Logs));
    client.join_threads();
    std::thread::scope(|scope| {
        let call = || {
            LOG.set(1);
            client.collective(GroupId(0), barrier(), None, "b.py:7").unwrap();
        };
        scope.spawn(call).join().unwrap();
    });
    client.now().unwrap();
    LOG.set(1);
    client.now().unwrap();
    LOG.set(0);
    end(client);
    let said = driver.join().unwrap();
    assert!(matches!(said[..], [Op::Now, Op::Site(_), Op::Issue { .. }, Op::Now]), "{said:?}");
}

/// The thread has unsent operations and waits for another thread, which may query the driver about these operations.
#[test]
fn a_thread_hands_over_what_it_has_said_before_it_waits() {
    let (client, socket) = rank_whose(Compute::None);
    let driver = driver(socket, vec![]);
    client.capture_with(Box::new(Logs));
    client.join_threads();
    client.begins_threads();
    client.started.store(true, Relaxed);
    client.collective(GroupId(0), barrier(), None, "a.py:1").unwrap();
    client.barrier.end(&client);
    client.mark(Mark::End).unwrap();
    client.hands_over();
    client.barrier.end(&client);
    end(client);
    let said = driver.join().unwrap();
    assert!(matches!(said[..], [Op::Site(_), Op::Issue { .. }, Op::Mark(_)]), "{said:?}");
}

#[test]
fn a_call_that_blocks_is_one_question() {
    let (client, socket) = rank();
    let complete = Answer::Complete(vec![(0, Fetched::default())]);
    let driver = driver(socket, vec![reply(complete), reply(now(0))]);
    let blocking = Blocking { op: barrier(), input: None, output: &[], timeout: None, site: "a.py:1" };
    assert_eq!(client.run(GroupId(0), blocking).unwrap(), Ran::Delivered { lacks_values: false });
    client.now().unwrap();
    end(client);
    let said = driver.join().unwrap();
    assert!(matches!(said[..], [Op::Site(_), Op::Issue { .. }, Op::Wait { .. }, Op::Release(0), Op::Now]), "{said:?}");
}

#[test]
fn a_large_input_follows_the_question_where_nothing_is_measured() {
    let (client, socket) = rank_whose(Compute::None);
    let driver = driver(socket, vec![reply(Answer::TimedOut)]);
    let mut data = vec![7_u8; MANY as usize];
    // SAFETY: the region is that of `data`, which outlives it and is not accessed meanwhile.
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
    let computed = said
        .iter()
        .filter_map(|op| if let Op::Compute(slice) = op { Some(slice.measured.as_ps() / 1000) } else { None });
    let pieces: Vec<u64> = computed.collect();
    // The program's 30 ms, and concurrent compute of other tests in this process; the 20 ms before and the client's own
    // 40 ms are excluded.
    assert!(pieces[0] >= 30_000_000, "{pieces:?}");
}

#[test]
fn a_full_arena_is_an_error_and_freed_rooms_come_back() {
    let (client, socket) = rank();
    let freed = Reply { freed: vec![0], ..reply(Answer::Go) };
    let driver = driver(socket, vec![freed]);
    let mut data = vec![0_u8; 1 << 20];
    // SAFETY: both regions are parts of `data`, which outlives them and is not accessed meanwhile.
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
            let task = frames.accept(&socket, batch.opens_task.unwrap()).unwrap();
            let asked: Batch = FrameBuffer::default().read(&*task).unwrap();
            let mut frame = Vec::new();
            frame::encode(&reply(now(9)), &mut frame);
            task.write(&frame).unwrap();
            asked.ops
        });
        assert_eq!(scope.spawn(|| client.now().unwrap().0.as_ps()).join().unwrap(), 9);
        opened.join().unwrap()
    });
    assert_eq!(opened, [Op::Now]);
}

#[test]
fn a_driver_of_another_version_is_refused_and_hears_why() {
    let (theirs, ours) = UnixStream::pair().unwrap();
    let mut frame = Vec::new();
    frame::encode(&Hello { version: VERSION + 1, ..Hello::new(true) }, &mut frame);
    write_with_fds(&ours, &frame, &[]).unwrap();
    let error = Client::adopt(theirs, 0, 2).err().unwrap().to_string();
    let spoken = format!("cannot join the run: this side speaks version {VERSION}");
    assert!(error.contains(&spoken) && error.contains("\nhint: "), "{error}");
    // The rank has sent its hello message before it gave up.
    let ours = UnixWire::of_driver(ours);
    let theirs = Hello { version: VERSION + 1, ..Hello::new(true) }.hear(&mut FrameBuffer::default(), &ours);
    assert!(theirs.unwrap_err().to_string().contains(&format!("the other side version {VERSION}")));
}

/// A capture that claims one millisecond per operator, and records begins and ends of the client's own work.
#[derive(Default)]
struct Written {
    entries: Mutex<Vec<u8>>,
    inside: Arc<Mutex<Vec<bool>>>,
}

impl Capture for Written {
    fn take(&self, dictionary: &mut Vec<u8>, operators: &mut Vec<u8>) -> u64 {
        let entries = std::mem::take(&mut *self.entries.lock().unwrap());
        let (names, ran): (Vec<u8>, Vec<u8>) = entries.iter().partition(|entry| **entry < 100);
        dictionary.extend(names);
        operators.extend(&ran);
        1_000_000 * ran.len() as u64
    }

    fn log(&self) -> (u64, bool) {
        (0, !self.entries.lock().unwrap().is_empty())
    }

    fn inside(&self, inside: bool) {
        self.inside.lock().unwrap().push(inside);
    }

    fn thread_started(&self) {}

    fn is_compiling(&self) -> bool {
        false
    }
}

fn slices(said: Vec<Op>) -> Vec<uniference_protocol::messages::ComputeSlice> {
    said.into_iter().filter_map(|op| if let Op::Compute(slice) = op { Some(slice) } else { None }).collect()
}

#[test]
fn a_slice_brings_its_operators_and_leaves_out_what_the_capture_took() {
    let (client, socket) = rank();
    let driver = driver(socket, vec![reply(Answer::Go), reply(now(0)), reply(now(0))]);
    let capture = Written { entries: Mutex::new(vec![101, 1, 102]), ..Written::default() };
    let inside = capture.inside.clone();
    client.capture_with(Box::new(capture));
    client.start().unwrap();
    let until = clock_ns(ClockId::ThreadCPUTime) + 20_000_000;
    while clock_ns(ClockId::ThreadCPUTime) < until {}
    let before = clock_ns(ClockId::ProcessCPUTime);
    client.now().unwrap();
    let most = clock_ns(ClockId::ProcessCPUTime) - before + 30_000_000;
    client.ran(&[2], &[103]);
    client.now().unwrap();
    end(client);
    let said = driver.join().unwrap();
    // The definitions of operators are sent before the compute that refers to them.
    let named: Vec<usize> = (0..said.len()).filter(|at| matches!(said[*at], Op::Dictionary { .. })).collect();
    assert_eq!(named.iter().map(|at| &said[*at]).collect::<Vec<_>>(), [&names(0, &[1]), &names(1, &[2])]);
    assert!(named.iter().all(|at| matches!(said[at + 1], Op::Compute(_))), "{said:?}");
    let said = slices(said);
    // 2 ms of the 20 ms of CPU time belong to the capture.
    assert_eq!(said.iter().map(|slice| &slice.operators[..]).collect::<Vec<_>>(), [&[101, 102][..], &[103]]);
    let measured = said[0].measured.as_ps() / 1000;
    assert!((18_000_000..=most).contains(&measured), "{measured} ns");
    // The capture is told one begin and one end per call, however deep the nesting.
    assert_eq!(*inside.lock().unwrap(), [true, false].repeat(3));
}

#[test]
fn modelled_compute_has_the_same_slices_as_measured_compute_and_none_has_none() {
    let said = [Compute::Measured, Compute::Modelled, Compute::None].map(|compute| {
        let (client, socket) = rank_whose(compute);
        let driver = driver(socket, vec![reply(Answer::Go), reply(now(0)), reply(now(0))]);
        client.start().unwrap();
        client.ran(&[], &[7]);
        client.now().unwrap();
        client.mark(Mark::End).unwrap();
        client.enter();
        client.mark(Mark::End).unwrap();
        client.mark(Mark::End).unwrap();
        client.leave();
        client.now().unwrap();
        end(client);
        let ops = driver.join().unwrap();
        let places: Vec<bool> = ops.iter().map(|op| matches!(op, Op::Compute(_))).collect();
        (places, slices(ops))
    });
    let [(measured, _), (modelled, slices), (none, _)] = said;
    assert_eq!(measured, modelled);
    assert_eq!(modelled, [false, true, false, true, false, true, false, false, true, false]);
    assert_eq!(
        slices[0],
        uniference_protocol::messages::ComputeSlice { measured: SimDuration::ZERO, operators: vec![7] }
    );
    assert!(slices.iter().all(|slice| slice.measured == SimDuration::ZERO));
    assert_eq!(none, [false; 6]);
}

#[test]
fn operators_that_are_too_long_for_one_message_come_in_several() {
    let (client, socket) = rank_whose(Compute::Modelled);
    let driver = driver(socket, vec![reply(Answer::Go), reply(now(0))]);
    client.start().unwrap();
    let operators: Vec<u8> = (0..5_u32 << 19).map(|at| (at % 251) as u8).collect();
    client.ran(&[], &operators);
    client.now().unwrap();
    end(client);
    let said = driver.join().unwrap();
    let [Op::Start, Op::Operators(first), Op::Operators(second), Op::Compute(slice), Op::Now] = &said[..] else {
        panic!("{} messages", said.len())
    };
    assert_eq!([&first[..], second, &slice.operators].concat(), operators);
    assert!(first.len() < 2 << 20 && second.len() < 2 << 20);
}

/// A definition by one thread may be used by another thread before the first one has sent anything.
#[test]
fn what_operators_name_goes_ahead_of_all_threads_operators() {
    let (client, socket) = rank_whose(Compute::Modelled);
    client.begins_threads();
    client.started.store(true, Relaxed);
    client.enter();
    client.leave();
    client.ran(&[1, 2], &[101]);
    client.mark(Mark::End).unwrap();
    client.flush().unwrap();
    client.barrier.end(&client);
    end(client);
    let mut frames = FrameBuffer::default();
    let first: Batch = frames.read(&socket).unwrap();
    assert_eq!(first.ops, [names(0, &[1, 2])]);
    let second: Batch = frames.read(&socket).unwrap();
    let [Op::Compute(slice), Op::Mark(_)] = &second.ops[..] else { panic!("{second:?}") };
    assert_eq!(slice.operators, [101]);
}

#[test]
fn what_was_said_right_behind_a_pause_ends_it() {
    let (client, _driver) = rank();
    let (theirs, ours) = UnixStream::pair().unwrap();
    let (theirs, ours) = (UnixWire::of_rank(theirs), listening::Listener::new(UnixWire::of_rank(ours)));
    let mut both = Vec::new();
    frame::encode(&Batch { ops: vec![Op::Pause(Span::For(SimDuration::from_us(1)))], ..Batch::default() }, &mut both);
    frame::encode(&Batch::default(), &mut both);
    theirs.write(&both).unwrap();
    let mut frames = FrameBuffer::default();
    let first: Batch = frames.read(&ours.wire).unwrap();
    assert!(first.ops[0].asks() && !frames.is_empty());
    let (heard, hears) = std::sync::mpsc::channel();
    thread::scope(|scope| {
        // The listener of the paused thread gets no further message.
        scope.spawn(|| {
            client.listen_to_paused(&ours, &frames);
            heard.send(()).unwrap();
        });
        let was_heard = hears.recv_timeout(std::time::Duration::from_secs(10)).is_ok();
        drop(theirs);
        assert!(was_heard);
    });
    end(client);
}

#[test]
fn a_threads_name_goes_ahead_of_what_it_says_next() {
    let (client, socket) = rank_whose(Compute::None);
    let driver = driver(socket, vec![reply(Answer::Go), reply(now(0)), reply(now(0))]);
    client.start().unwrap();
    client.is_called("before");
    client.is_called("loader");
    client.now().unwrap();
    client.now().unwrap();
    end(client);
    assert_eq!(driver.join().unwrap(), [Op::Start, Op::Mark(Mark::Name("loader".into())), Op::Now, Op::Now]);
}

/// A thread with modelled compute must charge its operators before it lets another thread continue, from its first
/// operator until its next request to the driver. Reporting the operators is not enough.
#[test]
fn modelled_compute_is_to_be_settled_until_the_thread_asks() {
    for compute in [Compute::Modelled, Compute::Measured, Compute::None] {
        let is_modelled = compute == Compute::Modelled;
        let (client, socket) = rank_whose(compute);
        let driver = driver(socket, vec![reply(Answer::Go), reply(Answer::Go)]);
        client.start().unwrap();
        client.ran(&[], &[7]);
        assert!(!client.must_settle(), "there is no other thread");
        client.settles().unwrap();
        client.begins_threads();
        assert!(!client.must_settle(), "the time of the first operator has passed");
        client.ran(&[], &[8]);
        assert_eq!(client.must_settle(), is_modelled);
        client.mark(Mark::End).unwrap();
        client.flush().unwrap();
        assert_eq!(client.must_settle(), is_modelled, "no time has passed");
        client.barrier.end(&client);
        end(client);
        let said = driver.join().unwrap();
        assert!(said.contains(&Op::Settle), "{said:?}");
    }
}

/// The program's line is looked up for operations without a line: waits in the C library and questions about the
/// device.
#[test]
fn what_has_no_line_of_its_own_is_of_the_line_that_the_program_is_at() {
    let (client, socket) = rank_whose(Compute::None);
    let driver = driver(socket, vec![reply(Answer::Go), reply(Answer::TimedOut)]);
    client.find_lines_with(|| Some("a.py:7".to_owned()));
    client.sleep(Span::For(SimDuration::from_us(1))).unwrap();
    client.poll(0).unwrap();
    end(client);
    let said = driver.join().unwrap();
    let [Op::Site(line), Op::At(Site(0)), Op::Sleep(_), Op::Wait { site: Site(0), .. }] = &said[..] else {
        panic!("{said:?}")
    };
    assert_eq!(line, "a.py:7");
}
