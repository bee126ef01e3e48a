//! The source lines of launched work: the lines of the operators that launched it.

use super::*;

/// The lines of a record's compute in order: those of CUDA streams, and those of the host.
fn lines(record: &[u8]) -> [Vec<String>; 2] {
    let mut steps = RecordReader::open(Cursor::new(record.to_vec())).unwrap().by_rank().0.remove(0);
    let mut lines = [Vec::new(), Vec::new()];
    while let Some((_, step)) = steps.next() {
        if let RecordedStep::Request(Request::Issue { activity: Activity::Compute(_), queue, .. }) = &step {
            lines[usize::from(queue.stream().is_none())].push(steps.line(&step).to_owned());
        }
    }
    lines
}

/// Operators at lines 8 and 9, the latter in the backward pass with a copy, a kernel outside of all operators, a graph
/// with an operator of line 8 that is launched twice, and an operator inside which the program waits. Host work has the
/// line of the call that ends it.
#[test]
fn what_an_operator_launches_has_its_line() {
    let at = |site, backward| Line { site, backward };
    let launch = StreamEntry::Launch { kernel: 1, stream: 0, flags: INSIDE, bytes: 0 };
    let copy = StreamEntry::Copy { stream: 0, kind: CopyKind::Within, bytes: 1, flags: INSIDE };
    let launches = |encoder: &mut Encoder, line| {
        encoder.stream(launch);
        encoder.execution(0, line, &[]);
    };
    let doing = || {
        let mut program = Program::default();
        let first = program.slice(|encoder| {
            encoder.site("a.py:8", "f");
            encoder.site("a.py:9", "f");
            launches(encoder, at(1, false));
            encoder.stream(copy);
            launches(encoder, at(2, true));
            kernel(encoder, 1, 10);
            encoder.stream(StreamEntry::Capture { stream: 0, graph: Some(1) });
            launches(encoder, at(1, false));
            encoder.stream(StreamEntry::Capture { stream: 0, graph: None });
        });
        let second = program.slice(|encoder| {
            (0..2).for_each(|_| encoder.stream(StreamEntry::GraphLaunch { graph: 1, stream: 5 }));
            encoder.stream(launch);
        });
        let third = program.slice(|encoder| {
            encoder.execution(0, at(2, false), &[]);
            launches(encoder, at(0, false));
        });
        let call = || Asks(Op::Synchronize { work: DeviceWork::Device, site: Site(0) });
        let named = Says(Op::Site("a.py:20".to_owned()));
        vec![named, first, call(), second, call(), third, call()]
    };
    let two = || plan(2, Way::Modelled, 1, false);
    let done = run(two(), vec![doing(), doing()], &[0, 1]);
    assert_eq!(run(two(), vec![doing(), doing()], &[1, 0]).record, done.record);
    let [streams, host] = lines(&done.record);
    let (eight, nine) = ("a.py:8", "a.py:9 (backward)");
    // The interrupted operator has a piece before and a piece after the wait; the first one has no duration.
    assert_eq!(streams, [eight, nine, nine, "", eight, eight, "", "a.py:9", ""]);
    assert!(host.iter().all(|line| line == "a.py:20"), "{host:?}");
    assert_eq!(again(&done.record, two()).0, done.digest);
}

/// A run with the compute of an earlier run has equal durations, whichever lines its kernels have.
#[test]
fn compute_of_an_earlier_run_is_found_by_its_slices() {
    let program = |line: u32| {
        let mut program = Program::default();
        let slice = program.slice(|encoder| {
            encoder.site("a.py:8", "f");
            for _ in 0..3 {
                encoder.stream(StreamEntry::Launch { kernel: 1, stream: 0, flags: INSIDE, bytes: 0 });
                encoder.execution(0, Line { site: line, backward: false }, &[]);
            }
        });
        vec![slice, synchronizes()]
    };
    let once = run(model(Way::Modelled), vec![program(1)], &[0]);
    let mut ranks = RecordReader::open(Cursor::new(once.record)).unwrap().by_rank().0;
    let earlier = Earlier::new(ranks.iter_mut().map(|steps| {
        std::iter::from_fn(move || {
            let (task, step) = steps.next()?;
            let line = steps.line(&step).to_owned();
            Some((task, step, line))
        })
    }));
    for line in [0, 1] {
        let plan = Sources { earlier: Some(earlier.clone()), ..plan(1, Way::From, 9, false) };
        let again = run(plan, vec![program(line)], &[0]);
        assert_eq!((again.digest, again.end), (once.digest.clone(), 66.0));
    }
}
