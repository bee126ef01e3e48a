//! Tests of profiles in unusual forms that carry the same information as a regular profile, or have lost some of it.

use super::*;

/// Timestamp of the start of the profile, in microseconds since 1970.
const EPOCH: f64 = 1_700_000_000_000_000.0;

/// Events of one training step on one of two ranks: a GEMM of 300 us, an all-reduce of 200 us after it, and the CPU,
/// which waits for both.
fn events(rank: u32) -> Vec<Json> {
    let step = |ts: f64| EPOCH + ts;
    let mut reduces = json!({"correlation": 2, "stream": 20, "device": rank, "Collective name": "allreduce", "In msg nelems": 1 << 20,
        "Out msg nelems": 1 << 20, "dtype": "Float", "Group size": 2, "Process Group Name": "0", "Process Group Ranks": "[0, 1]"});
    reduces["External id"] = json!(12);
    let with = |mut event: Json, external: u64| {
        event["args"]["External id"] = json!(external);
        event
    };
    vec![
        operation("aten::mm", step(10.0), 30.0),
        with(call("hipExtLaunchKernel", step(20.0), 5.0, 1), 11),
        with(kernel("gemm", 7, step(30.0), 300.0, 1), 11),
        operation("c10d::allreduce_", step(50.0), 30.0),
        with(call("hipExtLaunchKernel", step(60.0), 5.0, 2), 12),
        span("kernel", "ncclDevKernel_Generic(ncclDevComm*)", 20, step(340.0), 200.0, reduces),
        call("hipDeviceSynchronize", step(100.0), 445.0, 3),
        operation("aten::add", step(600.0), 50.0),
    ]
}

/// Links the events of both ranks after `change` has altered each event.
fn linked(change: impl Fn(&mut Json)) -> Result<Job, LinkError> {
    let rank = |rank: u32| {
        let mut events = events(rank);
        events.iter_mut().for_each(&change);
        let text = json!({"traceEvents": events, "distributedInfo": {"rank": rank, "world_size": 2}});
        let Recording::Profile(profile) = Recording::read(text.to_string().as_bytes())? else { panic!("it is one") };
        Ok(RankRecording { file: "profile".to_owned(), named: None, profile, host: None })
    };
    Ok(checked(link(vec![rank(0)?, rank(1)?], &Options::default())?))
}

#[test]
fn communication_without_correlation_takes_its_bytes_all_the_same() {
    let plain = linked(|_| {}).unwrap();
    // All-reduces of 4 MiB at 1 GB/s last milliseconds, and the CPU waits for them.
    let (expected, fast) = (makespan(&plain, "1 GB/s"), makespan(&plain, "100 GB/s"));
    assert!(expected > fast + 3.0, "{expected} ms and {fast} ms");
    let zero = |event: &mut Json| {
        if event["name"].as_str().is_some_and(|name| name.starts_with("nccl")) {
            event["args"]["correlation"] = json!(0);
            event["args"]["External id"] = json!(0);
        }
    };
    let none = |event: &mut Json| drop(event["args"].as_object_mut().unwrap().remove("correlation"));
    let large = |event: &mut Json| {
        if let Some(id) = event["args"]["correlation"].as_u64() {
            event["args"]["correlation"] = json!(id + (1 << 63));
        }
    };
    for (what, job) in [("0", linked(zero)), ("none", linked(none)), ("above 2^63", linked(large))] {
        let job = job.unwrap();
        assert!(
            (makespan(&job, "1 GB/s") - expected).abs() < 0.01,
            "{what}: {} of {expected} ms",
            makespan(&job, "1 GB/s")
        );
        assert!(error_of(&job) < 1e-6, "{what}");
        let said = job.notes.iter().any(|note| note.contains("no `correlation`; paired"));
        assert_eq!(said, what != "above 2^63", "{what}: {:?}", job.notes);
    }
}

#[test]
fn a_kernel_without_correlation_is_not_paired_with_a_copy_or_a_later_launch_of_its_operator() {
    let of = |mut event: Json| {
        event["args"]["External id"] = json!(5);
        event["args"].as_object_mut().unwrap().remove("correlation");
        event
    };
    let paired = |events: &[Json]| {
        let Recording::Profile(profile) = recording(&json!({"traceEvents": events})) else { panic!("it has events") };
        let call = |kernel: &profile::Event| {
            let call = profile
                .events
                .iter()
                .find(|event| event.category == profile::Category::Call && event.correlation == kernel.correlation)?;
            Some(profile.name(call).to_owned())
        };
        let kernel = profile.events.iter().find(|event| event.category == profile::Category::Kernel).unwrap();
        kernel.correlation.and_then(|_| call(kernel))
    };
    let copy = of(call("hipMemcpyAsync", 0.0, 5.0, 1));
    let launch = |ts: f64| of(call("hipLaunchKernel", ts, 5.0, 1));
    let kernel = of(kernel("gemm", 7, 20.0, 5.0, 1));
    assert_eq!(paired(&[copy, launch(10.0), kernel.clone()]).as_deref(), Some("hipLaunchKernel"));
    // One kernel and two calls are ambiguous, and a later call cannot be the launch.
    assert_eq!(paired(&[launch(0.0), launch(10.0), kernel.clone()]), None);
    assert_eq!(paired(&[launch(30.0), kernel]), None);
}

#[test]
fn spans_that_have_lost_their_times_are_refused() {
    let error = linked(|event| {
        if event["ts"].as_f64().unwrap() > EPOCH + 55.0 {
            event["ts"] = json!(0.0);
            event["dur"] = json!(0.0);
        }
    });
    let text = error.unwrap_err().to_string();
    assert!(text.starts_with("4 of 8 spans have no time (`ts` and `dur` are 0), while the others begin at "), "{text}");
    assert!(text.contains("\nhint: "), "{text}");
}

#[rstest]
#[case("ts", "NaN")]
#[case("dur", "inf")]
fn spans_whose_times_are_not_finite_are_refused(#[case] key: &str, #[case] value: &str) {
    let mut events = events(0);
    let kernel = events.iter_mut().find(|event| event["name"].as_str().unwrap().starts_with("nccl")).unwrap();
    kernel[key] = json!("VALUE");
    let text = json!({"traceEvents": events}).to_string().replace("\"VALUE\"", value);
    let error = Recording::read(text.as_bytes()).unwrap_err().to_string();
    assert!(error.starts_with("1 of 8 spans have no time (`ts` or `dur` is no number)\nhint: "), "{error}");
}

#[test]
fn the_number_of_lost_spans_is_at_most_the_number_of_spans() {
    // Events of a category that is not linked are not counted, neither as spans nor as spans without times.
    let late = span("cpu_op", "aten::mm", 1, EPOCH, 5.0, json!({}));
    let lost = |category: &str| span(category, "lost", 1, 0.0, 0.0, json!({}));
    let text = json!({"traceEvents": [late, lost("cpu_op"), lost("Trace"), lost("python_function")]}).to_string();
    let error = Recording::read(text.as_bytes()).unwrap_err().to_string();
    assert!(error.starts_with("1 of 2 spans have no time (`ts` and `dur` are 0)"), "{error}");
}

#[rstest]
fn calls_of_every_runtime_and_driver_are_read(
    #[values("cuda", "hip", "xpu", "mtia", "privateuse1")] vendor: &str,
    #[values("runtime", "driver")] kind: &str,
) {
    let job = linked(|event| {
        if event["cat"] == "cuda_runtime" {
            event["cat"] = json!(format!("{vendor}_{kind}"));
        }
    });
    assert_eq!(work(&job.unwrap().ranks[0]), work(&linked(|_| {}).unwrap().ranks[0]));
}

#[test]
fn what_is_almost_json_is_read_and_what_is_not_is_said_with_its_place() {
    let text = |bandwidth: &str| {
        format!(
            r#"{{"traceEvents": [{{"ph": "X", "cat": "cpu_op", "name": "a", "tid": 1, "ts": 5, "dur": 1, "args": {{"bandwidth": {bandwidth}}}}}]}}"#
        )
    };
    for bandwidth in ["inf", "-Infinity", "NaN", "1e3"] {
        assert!(matches!(Recording::read(text(bandwidth).as_bytes()), Ok(Recording::Profile(_))), "{bandwidth}");
    }
    let error = Recording::read(text("infinite").as_bytes()).unwrap_err().to_string();
    assert!(
        error.starts_with("the file is damaged: expected value at line 1 column ") && error.contains("\nhint: "),
        "{error}"
    );
    let cut = Recording::read(&text("1").as_bytes()[..70]).unwrap_err().to_string();
    assert!(cut.starts_with("the file is damaged: EOF while parsing"), "{cut}");
    let zip = Recording::read(&b"PK\x03\x04"[..]).unwrap_err().to_string();
    assert!(zip.starts_with("not a recording of PyTorch: expected value at line 1 column 1\nhint: give "), "{zip}");
}

#[test]
fn errors_of_reading_are_not_called_damage() {
    struct Failing(io::ErrorKind);
    impl Read for Failing {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::Error::new(self.0, "it fails"))
        }
    }
    let error = |input: &mut dyn Read| Recording::read(input).unwrap_err().to_string();
    let hint = "copy the file again from its source, or record again";
    assert_eq!(error(&mut Failing(io::ErrorKind::IsADirectory)), format!("cannot be read: it fails\nhint: {hint}"));
    let begun = || &b"{\"traceEvents\": ["[..];
    let interrupted = error(&mut begun().chain(Failing(io::ErrorKind::TimedOut)));
    assert_eq!(interrupted, format!("cannot be read: it fails\nhint: {hint}"));
    let endless = error(&mut begun().chain(Failing(io::ErrorKind::FileTooLarge)));
    assert_eq!(endless, "cannot be read: it fails\nhint: record fewer steps");
}

#[test]
fn traces_name_gloo_if_it_carried_out_their_communication() {
    let library = |linked: &Linked| linked.metadata.text(uniference_formats::chakra::own::LIBRARY).map(str::to_owned);
    assert_eq!(library(&alone(&[operation("aten::mm", 0.0, 5.0)])), None);
    let issue = || operation("c10d::allreduce_", 0.0, 5.0);
    let args = json!({"Collective name": "allreduce", "In msg nelems": 8, "Out msg nelems": 8, "dtype": "Float"});
    let mark = span("user_annotation", "gloo:all_reduce", 11, 6.0, 5.0, args);
    assert_eq!(library(&alone(&[issue(), mark])).as_deref(), Some("gloo"));
    // A program that uses NCCL looks like this if the accelerator's activity is not recorded.
    let job = link(vec![of_events(&[issue()], &json!({}))], &Options::default()).unwrap();
    assert_eq!(library(&job.ranks[0]), None);
    assert!(job.notes.iter().any(|note| note.contains("record with ProfilerActivity.CUDA")), "{:?}", job.notes);
    assert_eq!(library(&linked(|_| {}).unwrap().ranks[0]), None);
}
