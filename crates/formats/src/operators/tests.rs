use super::*;
use proptest::prelude::*;
use rstest::rstest;

/// An entry of any kind, as a test keeps it.
#[derive(Clone, Debug, PartialEq)]
enum Kept {
    Definition(Definition),
    Site(String),
    Restart,
    Execution(usize, Line, bool, Vec<u64>),
    Allocated(u64, u64, bool),
    Level(Level, u64),
    Freed(u64),
    Kind(u64, MemoryKind),
    Answered(Line, String),
    Called(u64, bool),
    Timed(u64, u64),
    Stream(StreamEntry),
    Number(u64),
    PythonCalls(u64),
    Integers(u32, Vec<i64>),
    Reading(Reading),
}

impl Kept {
    fn of(entry: Entry<'_>) -> Kept {
        match entry {
            Entry::Execution { definition, line, autograd, allocations } => {
                assert_eq!(line.backward, autograd == Autograd::Backward);
                Kept::Execution(definition, line, autograd == Autograd::Recording, allocations.to_vec())
            }
            Entry::Allocated { allocation, bytes, on_gpu } => Kept::Allocated(allocation, bytes, on_gpu),
            Entry::Level { level, bytes } => Kept::Level(level, bytes),
            Entry::Freed { allocation } => Kept::Freed(allocation),
            Entry::Kind { allocation, kind } => Kept::Kind(allocation, kind),
            Entry::Timed { before, lasted } => Kept::Timed(before, lasted),
            Entry::Answered { line, operator } => Kept::Answered(line, operator.to_owned()),
            Entry::Called { allocation, written } => Kept::Called(allocation, written),
            Entry::Stream(entry) => Kept::Stream(entry),
            Entry::Number(number) => Kept::Number(number),
            Entry::PythonCalls(calls) => Kept::PythonCalls(calls),
            Entry::Integers { buffer, values } => Kept::Integers(buffer, values.to_vec()),
            Entry::Reading(reading) => Kept::Reading(reading),
        }
    }

    fn write(&self, encoder: &mut Encoder) {
        match self {
            Kept::Definition(definition) => encoder.definition(definition),
            Kept::Site(line) => encoder.site(line, "f"),
            Kept::Restart => encoder.restart(),
            Kept::Execution(definition, line, recorded, allocations) => {
                encoder.recorded(*recorded);
                encoder.execution(*definition, *line, allocations);
            }
            Kept::Allocated(allocation, bytes, false) => encoder.allocated(*allocation, *bytes),
            Kept::Allocated(allocation, bytes, true) => encoder.allocated_on_gpu(*allocation, *bytes),
            Kept::Level(level, bytes) => encoder.level(*level, *bytes),
            Kept::Freed(allocation) => encoder.freed(*allocation),
            Kept::Kind(allocation, kind) => encoder.kind(*allocation, *kind),
            Kept::Timed(before, lasted) => encoder.timed(*before, *lasted),
            Kept::Answered(line, operator) => encoder.answered(*line, operator),
            Kept::Called(allocation, written) => encoder.called(*allocation, *written),
            Kept::Stream(entry) => encoder.stream(*entry),
            Kept::Number(number) => encoder.launch_number(*number),
            Kept::PythonCalls(calls) => encoder.python_calls(*calls),
            Kept::Integers(buffer, values) => encoder.integers(*buffer, values),
            Kept::Reading(reading) => encoder.reading(*reading),
        }
    }
}

fn read(decoder: &mut Decoder, slice: &[u8]) -> Result<Vec<Kept>, Invalid> {
    let mut entries = Vec::new();
    decoder.read(slice, |_, entry| entries.push(Kept::of(entry)))?;
    Ok(entries)
}

fn tensor(sizes: &[u64], strides: &[i64]) -> Tensor {
    let dtype = ScalarType(6);
    Tensor { dtype, place: Place::CPU, written: false, sizes: sizes.to_vec(), strides: strides.to_vec() }
}

fn mm() -> Definition {
    let arguments = [tensor(&[2, 3], &[3, 1]), tensor(&[3, 4], &[4, 1])].map(Argument::Tensor).to_vec();
    Definition { name: "aten::mm".into(), arguments, results: vec![Argument::Tensor(tensor(&[2, 4], &[4, 1]))] }
}

/// The bytes that the documentation describes, written by hand.
#[test]
fn a_stream_is_what_its_documentation_says() {
    let mut slice = vec![0, 8];
    slice.extend(b"aten::mm");
    // Two tensors of float32 on the CPU that are read: 2 x 3 (strides 3, 1) and 3 x 4 (strides 4, 1).
    slice.extend([2, 7, 6, 0, 0, 2, 2, 3, 6, 2, 7, 6, 0, 0, 2, 3, 4, 8, 2]);
    slice.extend([1, 7, 6, 0, 0, 2, 2, 4, 8, 2]);
    // The program's line 7 in `f`.
    slice.extend([1, 6]);
    slice.extend(b"a.py:7");
    slice.extend([1, b'f']);
    // Memory of this thread: allocation 300 with 1,000 bytes, and 301 with 1 TiB on a GPU, which has 2 MiB reserved and
    // 520 MiB for the context.
    slice.extend([6, 2, 0xd8, 0x04, 0xe8, 0x07, 16, 2, 0x80, 0x80, 0x80, 0x80, 0x80, 0x20]);
    slice.extend([17, 0x80, 0x80, 0x80, 0x01, 18, 0x80, 0x80, 0x80, 0x84, 0x02]);
    // The definition ran at site 1, in the backward pass, on allocations 300, 299 and 0.
    slice.extend([32, 3, 1, 1, 0xd5, 0x04]);
    // Allocation 5 contains a parameter; `aten::item` read a value at an unknown line; allocation 5 was freed.
    slice.extend([4, 10, 1, 5, 0, 10]);
    slice.extend(b"aten::item");
    slice.extend([3, 0]);
    // The next execution begins after 300 ns and takes 5 ns.
    slice.extend([7, 0xac, 0x02, 5]);
    // Autograd records the execution, which works on untracked memory.
    slice.extend([19, 1, 32, 0, 9, 0, 0]);
    // 200 functions of Python have begun.
    slice.extend([30, 0xc8, 0x01]);
    // Then the program calls an operation that sends the contents of allocation 5 and receives into allocation 6.
    slice.extend([20, 10, 21, 2]);
    let expected = [
        Kept::Allocated(300, 1000, false),
        Kept::Allocated(301, 1 << 40, true),
        Kept::Level(Level::Reserved, 2 << 20),
        Kept::Level(Level::Context, 520 << 20),
        Kept::Execution(0, Line { site: 1, backward: true }, false, vec![300, 299, 0]),
        Kept::Kind(5, MemoryKind::Parameter),
        Kept::Answered(Line::default(), "aten::item".into()),
        Kept::Freed(5),
        Kept::Timed(300, 5),
        Kept::Execution(0, Line::default(), true, vec![0, 0, 0]),
        Kept::PythonCalls(200),
        Kept::Called(5, false),
        Kept::Called(6, true),
    ];
    let mut decoder = Decoder::default();
    assert_eq!(read(&mut decoder, &slice).unwrap(), expected);
    assert_eq!(decoder.definitions(), [mm()]);
    assert_eq!(decoder.source_line(1), Some(&SourceLine { line: "a.py:7".into(), function: "f".into() }));
    assert_eq!(decoder.source_line(0), None);
    // The encoder writes the same bytes.
    let mut encoder = Encoder::default();
    encoder.definition(&mm());
    encoder.site("a.py:7", "f");
    encoder.restart();
    expected.iter().for_each(|entry| entry.write(&mut encoder));
    assert_eq!(encoder.take(), slice);
}

/// Entries of streams, encoded by hand.
#[test]
fn entries_of_streams_are_what_their_documentation_says() {
    let mut slice = vec![8, 2];
    slice.extend(b"k1");
    assert_eq!(dictionary_length(&slice), Ok(slice.len()));
    slice.extend([9, 1, 7, 5, 0xac, 0x02, 10, 0, 3, 8, 2, 11, 4, 7, 12, 0, 4, 13, 7, 2, 13, 7, 0, 14, 2, 0, 15, 7]);
    let inside = LaunchFlags { inside: true, spins: true, ..LaunchFlags::default() };
    let free = LaunchFlags { free: true, ..LaunchFlags::default() };
    let expected = [
        StreamEntry::Launch { kernel: 1, stream: 7, flags: inside, bytes: 300 },
        StreamEntry::Copy { stream: 0, kind: CopyKind::DeviceToPinned, bytes: 8, flags: free },
        StreamEntry::Record { event: 4, stream: 7 },
        StreamEntry::Wait { stream: 0, event: 4 },
        StreamEntry::Capture { stream: 7, graph: Some(2) },
        StreamEntry::Capture { stream: 7, graph: None },
        StreamEntry::GraphLaunch { graph: 2, stream: 0 },
        StreamEntry::HostFunction { stream: 7 },
    ];
    let mut decoder = Decoder::default();
    assert_eq!(read(&mut decoder, &slice).unwrap(), expected.map(Kept::Stream));
    assert_eq!((decoder.kernels(), decoder.kernel(1)), (&["k1".to_owned()][..], "k1"));
    let mut encoder = Encoder::default();
    encoder.kernel("k1");
    expected.into_iter().for_each(|entry| encoder.stream(entry));
    assert_eq!(encoder.take(), slice);
}

#[test]
fn what_a_slice_has_defined_the_next_one_names() {
    let mut encoder = Encoder::default();
    encoder.definition(&mm());
    let mut slices = vec![encoder.take()];
    for allocation in [7, 9] {
        encoder.restart();
        // Whether autograd records in a slice has no effect on the next slice.
        encoder.recorded(allocation == 7);
        encoder.execution(0, Line::default(), &[allocation, 1, 2]);
        slices.push(encoder.take());
    }
    let mut decoder = Decoder::default();
    let entries: Vec<Kept> = slices.iter().flat_map(|slice| read(&mut decoder, slice).unwrap()).collect();
    let ran = |recorded, allocation| Kept::Execution(0, Line::default(), recorded, vec![allocation, 1, 2]);
    assert_eq!(entries, [ran(true, 7), ran(false, 9)]);
}

/// The first definition of each process has the number 0, and the first line the number 1. The decoder distinguishes
/// equal numbers by their processes.
#[test]
fn what_processes_have_numbered_by_themselves_is_told_apart() {
    let part = |name: &str, line: &str| {
        let mut encoder = Encoder::default();
        encoder.definition(&Definition { name: name.to_owned(), ..mm() });
        encoder.site(line, "f");
        encoder.kernel(name);
        let dictionary = encoder.take();
        encoder.level(Level::Reserved, 100);
        encoder.launch_number(3);
        encoder.stream(StreamEntry::Launch { kernel: 1, stream: 7, flags: LaunchFlags::default(), bytes: 0 });
        encoder.stream(StreamEntry::Record { event: 4, stream: 0 });
        encoder.stream(StreamEntry::Capture { stream: 7, graph: Some(2) });
        encoder.stream(StreamEntry::Capture { stream: 7, graph: None });
        encoder.reading(Reading { argument: 1, buffer: 9, count: 2 });
        encoder.execution(0, Line { site: 1, backward: false }, &[5, 0, 6]);
        (dictionary, encoder.take())
    };
    let ((own, ran), (others, theirs)) = (part("a::own", "a.py:1"), part("a::other", "a.py:1"));
    let dictionary = [own, of_process(5, &others)].concat();
    assert_eq!(dictionary_length(&dictionary), Ok(dictionary.len()));
    assert_eq!(with_lines(&dictionary, str::to_owned), dictionary);
    let mut decoder = Decoder::default();
    let shown = read(&mut decoder, &[dictionary, of_process(5, &theirs), ran].concat()).unwrap();
    assert!(decoder.has_processes());
    let expected = |definition: usize, short: u32, long: u64, reserved: u64| {
        [
            Kept::Level(Level::Reserved, reserved),
            Kept::Number(long + 3),
            Kept::Stream(StreamEntry::Launch {
                kernel: definition as u32 + 1,
                stream: short + 7,
                flags: LaunchFlags::default(),
                bytes: 0,
            }),
            Kept::Stream(StreamEntry::Record { event: short + 4, stream: short }),
            Kept::Stream(StreamEntry::Capture { stream: short + 7, graph: Some(short + 2) }),
            Kept::Stream(StreamEntry::Capture { stream: short + 7, graph: None }),
            Kept::Reading(Reading { argument: 1, buffer: short + 9, count: 2 }),
            Kept::Execution(definition, Line { site: 1, backward: false }, false, vec![long + 5, 0, long + 6]),
        ]
    };
    assert_eq!(shown, [expected(1, 5 << 24, 5 << 48, 100), expected(0, 0, 0, 200)].concat());
    assert_eq!(decoder.kernels(), ["a::own", "a::other"]);
    // Sites and streams of another process are unknown.
    let problem = |slice: &[u8]| read(&mut Decoder::default(), slice).unwrap_err().problem;
    assert_eq!(problem(&[1, 0, 0, 27, 1, 5, 2, 0]), Problem::Site(1));
    assert_eq!(problem(&[27, 1, 15, 0x80, 0x80, 0x80, 0x08]), Problem::Number(1 << 24));
    // The difference of an allocation refers to the previous allocation of the same process.
    let next = |bytes: u64| {
        let mut encoder = Encoder::default();
        encoder.allocated(1, bytes);
        encoder.take()
    };
    assert_eq!(read(&mut decoder, &of_process(5, &next(8))).unwrap(), [Kept::Allocated((5 << 48) + 7, 8, false)]);
    assert_eq!(read(&mut decoder, &next(9)).unwrap(), [Kept::Allocated(7, 9, false)]);
}

#[test]
fn definitions_and_lines_come_before_what_a_thread_has_done() {
    let mut encoder = Encoder::default();
    assert_eq!(dictionary_length(&[]), Ok(0));
    encoder.definition(&mm());
    encoder.site("a.py:1", "f");
    let dictionary = encoder.take();
    encoder.restart();
    encoder.execution(0, Line::default(), &[1, 2, 3]);
    let all = [dictionary.clone(), encoder.take()].concat();
    assert_eq!(dictionary_length(&all), Ok(dictionary.len()));
    assert_eq!(dictionary_length(&dictionary), Ok(dictionary.len()));
    assert_eq!(dictionary_length(&dictionary[..3]).unwrap_err().problem, Problem::CutShort);
}

#[test]
fn processes_belong_to_the_dictionary_however_many_bytes_their_tag_takes() {
    let mut encoder = Encoder::default();
    encoder.process(3);
    let process = encoder.take();
    let longer = [&[process[0] | 0x80, 0], &process[1..]].concat();
    for dictionary in [process, longer] {
        assert_eq!(dictionary_length(&dictionary), Ok(dictionary.len()));
        let last = dictionary.len() - 1;
        assert_eq!(dictionary_length(&dictionary[..last]).unwrap_err().problem, Problem::CutShort);
    }
    let other_memory = [4, 2, 16, 3];
    assert_eq!(dictionary_length(&other_memory), Ok(0));
    // A tag of two bytes, followed by too few bytes for a process.
    assert_eq!(dictionary_length(&[0x9b, 0]).unwrap_err().problem, Problem::CutShort);
}

#[test]
fn lines_of_a_dictionary_are_put_elsewhere_and_all_else_stays() {
    let written = |line: &str| {
        let mut encoder = Encoder::default();
        encoder.definition(&mm());
        encoder.site(line, "f");
        encoder.kernel("k");
        encoder.take()
    };
    let place = |line: &str| line.replace("/mirror", "");
    assert_eq!(with_lines(&written("/mirror/a.py:1"), place), written("/a.py:1"));
    // Bytes after the dictionary are not checked.
    let broken = [written("/mirror/a.py:1"), vec![6], written("/mirror/b.py:1")].concat();
    assert_eq!(with_lines(&broken, place), [written("/a.py:1"), vec![6], written("/mirror/b.py:1")].concat());
    assert_eq!(with_lines(&[], place), [0_u8; 0]);
}

#[rstest]
#[case::empty_text_is_missing(&[0], Problem::CutShort)]
#[case::text_is_longer_than_what_there_is(&[1, 100, b'a'], Problem::CutShort)]
#[case::a_number_without_an_end(&[2, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 1], Problem::LongNumber)]
#[case::a_number_of_65_bits(&[2, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02], Problem::LongNumber)]
#[case::a_kernel_that_is_not_there(&[9, 1, 0, 0, 0], Problem::Kernel(1))]
#[case::a_copy_of_no_kind(&[10, 0, 7, 1, 0], Problem::Copy(7))]
#[case::a_stream_out_of_range(&[15, 0x80, 0x80, 0x80, 0x80, 0x08], Problem::Number(1 << 31))]
#[case::an_argument_of_no_kind(&[0, 0, 1, 77], Problem::Argument(77))]
#[case::a_list_of_no_tensors(&[0, 0, 1, 8, 1, 3], Problem::Argument(3))]
#[case::a_definition_that_is_not_there(&[34, 0], Problem::Definition(2))]
#[case::a_line_that_is_not_there(&[5, 2, 0], Problem::Site(1))]
#[case::memory_of_no_kind(&[4, 2, 20], Problem::Kind(20))]
#[case::a_process_out_of_range(&[27, 0x80, 1], Problem::Process(128))]
#[case::memory_of_a_gpu_without_its_size(&[16, 2], Problem::CutShort)]
#[case::memory_of_kind_zero(&[4, 2, 0], Problem::Kind(0))]
#[case::more_dimensions_than_torch_has(&[0, 0, 1, 7, 6, 0, 0, 65], Problem::Dimensions(65))]
#[case::more_arguments_than_bytes(&[0, 0, 0xff, 0xff, 0xff, 0xff, 0x0f], Problem::CutShort)]
fn what_is_no_stream_is_refused(#[case] slice: &[u8], #[case] problem: Problem) {
    let error = read(&mut Decoder::default(), &[&[6], slice].concat()).unwrap_err();
    assert_eq!(error, Invalid { at: 1, problem });
    assert!(error.to_string().contains("\nhint: "), "{error}");
}

#[test]
fn streams_of_version_11_are_read() {
    let mut encoder = Encoder::default();
    encoder.definition(&mm());
    let definition = encoder.take();
    // Bytes written by hand, as the C++ library of version 11 wrote them.
    let old = [
        &[31][..],
        &definition,
        &[6, 4, 2, 5, 100, 4, 1, 6, 70, 4, 0, 8, 1, 4, 0, 11, 9, 13, 7, 2, 4, 0, 12, 7, 1, 4, 0, 14, 3, 2, 2, 4],
        &[4, 0, 15, 1, 3, 2, 16, 0, 2, 2, 2, 4, 0, 4, 4, 4, 10, 4, 0, 16, 5, 4, 0, 18, 7, 4, 4, 0, 16, 0, 4, 9, 19, 8],
    ]
    .concat();
    let mut encoder = Encoder::default();
    encoder.definition(&mm());
    encoder.restart();
    encoder.allocated_on_gpu(1, 100);
    encoder.level(Level::Reserved, 70);
    encoder.recorded(true);
    encoder.launch_number(9);
    encoder.stream(StreamEntry::Capture { stream: 7, graph: Some(2) });
    encoder.stream(StreamEntry::Call { stream: 7, with_previous: true });
    encoder.integers(3, &[1, 2]);
    encoder.reading(Reading { argument: 1, buffer: 3, count: 2 });
    encoder.execution(0, Line::default(), &[1, 2, 3]);
    encoder.kind(3, MemoryKind::Buffer);
    encoder.called(5, true);
    let mut new = encoder.take();
    let mut other = Encoder::default();
    other.stream(StreamEntry::ExternalWait { stream: 7, event: 4 });
    new.extend(of_process(5, &other.take()));
    let mut last = Encoder::default();
    last.python_calls(8);
    new.extend(last.take());
    assert_eq!(read(&mut Decoder::default(), &old).unwrap(), read(&mut Decoder::default(), &new).unwrap());
    assert_eq!(dictionary_length(&old), Ok(1 + definition.len()));
    for end in 1..old.len() {
        // A truncated stream is refused, unless it ends between two entries.
        let _ = read(&mut Decoder::default(), &old[..end]);
    }
}

#[test]
fn texts_that_are_not_utf8_are_replaced() {
    let mut decoder = Decoder::default();
    read(&mut decoder, &[1, 2, b'a', 0xff, 0]).unwrap();
    assert_eq!(decoder.source_line(1).unwrap().line, "a\u{fffd}");
}

#[test]
fn types_of_elements_are_torchs() {
    use uniference_sim::program::DType;
    // c10::ScalarType of torch 2.14.
    for (number, dtype, bytes) in [
        (0, Some(DType::UInt8), 1),
        (6, Some(DType::Float32), 4),
        (10, Some(DType::Complex128), 16),
        (14, None, 4),
        (15, Some(DType::BFloat16), 2),
        (24, Some(DType::Float8E4M3), 1),
        (29, Some(DType::UInt64), 8),
        (45, None, 1),
    ] {
        assert_eq!((ScalarType(number).dtype(), ScalarType(number).bytes()), (dtype, bytes), "{number}");
        assert!(dtype.is_none_or(|dtype| ScalarType::from(dtype) == ScalarType(number)));
    }
}

#[rstest]
#[case(&[2, 3], &[3, 1], true)]
#[case(&[2, 3], &[1, 2], false)]
// Strides of dimensions with one element do not matter, and no stride of a tensor without elements does.
#[case(&[2, 1, 3], &[3, 99, 1], true)]
#[case(&[0, 3], &[7, 7], true)]
#[case(&[], &[], true)]
fn tensors_know_how_they_lie(#[case] sizes: &[u64], #[case] strides: &[i64], #[case] contiguous: bool) {
    let tensor = tensor(sizes, strides);
    assert_eq!(tensor.is_contiguous(), contiguous);
    assert_eq!(tensor.bytes(), 4 * sizes.iter().product::<u64>());
}

#[test]
fn names_have_a_namespace_and_an_overload() {
    let named = |name: &str| Definition { name: name.into(), ..mm() };
    let names = ["aten::add.Tensor", "aten::mm", "mine"].map(|name| named(name).base_name().to_owned());
    assert_eq!(names, ["add", "mm", "mine"]);
}

fn any_tensor() -> impl Strategy<Value = Tensor> {
    let dimensions = prop::collection::vec((any::<u64>(), any::<i64>()), 0..4);
    (any::<u8>(), any::<u8>(), any::<bool>(), dimensions).prop_map(|(dtype, place, written, dimensions)| {
        let (sizes, strides) = dimensions.into_iter().unzip();
        Tensor { dtype: ScalarType(dtype), place: Place(place), written, sizes, strides }
    })
}

fn any_argument() -> impl Strategy<Value = Argument> {
    prop_oneof![
        Just(Argument::None),
        any::<bool>().prop_map(Argument::Bool),
        any::<i64>().prop_map(Argument::Int),
        Just(Argument::Float),
        any::<String>().prop_map(Argument::Text),
        prop::collection::vec(any::<i64>(), 0..5).prop_map(Argument::Ints),
        any_tensor().prop_map(Argument::Tensor),
        prop::collection::vec(prop::option::of(any_tensor()), 0..4).prop_map(Argument::Tensors),
        Just(Argument::Other),
        any::<String>().prop_map(Argument::Names),
    ]
}

fn any_definition() -> impl Strategy<Value = Definition> {
    let arguments = || prop::collection::vec(any_argument(), 0..5);
    (any::<String>(), arguments(), arguments()).prop_map(|(name, arguments, results)| Definition {
        name,
        arguments,
        results,
    })
}

/// Entries with valid numbers: those of one definition and one line.
fn any_entries(definition: &Definition) -> impl Strategy<Value = Vec<Kept>> + use<> {
    let tensors = definition.tensors().count();
    let line = || (0..2_u32, any::<bool>()).prop_map(|(site, backward)| Line { site, backward });
    let entry = prop_oneof![
        any_definition().prop_map(Kept::Definition),
        any::<String>().prop_map(Kept::Site),
        Just(Kept::Restart),
        (line(), any::<bool>(), prop::collection::vec(any::<u64>(), tensors))
            .prop_map(|(line, recorded, on)| Kept::Execution(0, line, recorded && !line.backward, on)),
        (any::<u64>(), any::<u64>(), any::<bool>())
            .prop_map(|(allocation, bytes, on_gpu)| Kept::Allocated(allocation, bytes, on_gpu)),
        (any::<bool>(), any::<u64>())
            .prop_map(|(context, bytes)| Kept::Level(if context { Level::Context } else { Level::Reserved }, bytes)),
        any::<u64>().prop_map(Kept::Freed),
        (any::<u64>(), any::<u64>()).prop_map(|(before, lasted)| Kept::Timed(before, lasted)),
        (any::<u64>(), 0..4_usize).prop_map(|(allocation, kind)| Kept::Kind(allocation, MemoryKind::ALL[kind])),
        (line(), any::<String>()).prop_map(|(line, operator)| Kept::Answered(line, operator)),
        (any::<u64>(), any::<bool>()).prop_map(|(allocation, written)| Kept::Called(allocation, written)),
        (0_u32..1 << 31, 0..7_usize, any::<u64>(), any::<bool>()).prop_map(|(stream, kind, bytes, inside)| {
            let flags = LaunchFlags { inside, free: !inside, spins: false };
            Kept::Stream(StreamEntry::Copy { stream, kind: CopyKind::ALL[kind], bytes, flags })
        }),
        (0_u32..1 << 31, 1_u32..9).prop_map(|(stream, graph)| {
            Kept::Stream(StreamEntry::Capture { stream, graph: (graph > 1).then_some(graph) })
        }),
        (0_u32..1 << 31, any::<bool>())
            .prop_map(|(stream, with_previous)| Kept::Stream(StreamEntry::Call { stream, with_previous })),
        (0_u32..1 << 31, 1_u32..9).prop_map(|(stream, graph)| Kept::Stream(StreamEntry::Resumption { graph, stream })),
        (0_u32..1 << 31, 0_u32..9)
            .prop_map(|(stream, event)| Kept::Stream(StreamEntry::ExternalRecord { event, stream })),
        (0_u32..1 << 31, 0_u32..9)
            .prop_map(|(stream, event)| Kept::Stream(StreamEntry::ExternalWait { stream, event })),
        (0_u32..1 << 31, prop::collection::vec(any::<i64>(), 0..4))
            .prop_map(|(buffer, values)| Kept::Integers(buffer, values)),
        (0_u32..9, 0_u32..9, 0_u32..1 << 31).prop_map(|(argument, buffer, count)| Kept::Reading(Reading {
            argument,
            buffer,
            count
        })),
    ];
    prop::collection::vec(entry, 0..20)
}

proptest! {
    #[test]
    fn what_is_written_is_read_back((definition, entries) in any_definition().prop_flat_map(|definition| {
        let entries = any_entries(&definition);
        (Just(definition), entries)
    }), cut in 0..20_usize) {
        let mut encoder = Encoder::default();
        encoder.definition(&definition);
        encoder.site("a.py:1", "f");
        let mut slices = vec![encoder.take()];
        for part in [&entries[..cut.min(entries.len())], &entries[cut.min(entries.len())..]] {
            part.iter().for_each(|entry| entry.write(&mut encoder));
            slices.push(encoder.take());
        }
        let mut decoder = Decoder::default();
        let found: Vec<Kept> = slices.iter().flat_map(|slice| read(&mut decoder, slice).unwrap()).collect();
        let shown = |entry: &&Kept| !matches!(entry, Kept::Definition(_) | Kept::Site(_) | Kept::Restart);
        prop_assert_eq!(&found, &entries.iter().filter(shown).cloned().collect::<Vec<_>>());
        let definitions = entries.iter().filter_map(|entry| if let Kept::Definition(other) = entry { Some(other) } else { None });
        prop_assert_eq!(decoder.definitions().iter().collect::<Vec<_>>(), [&definition].into_iter().chain(definitions).collect::<Vec<_>>());
        // A stream that is truncated inside an entry is an error or has fewer entries, and never yields different
        // entries.
        let whole = slices.concat();
        for cut in 0..whole.len() {
            if let Ok(entries) = read(&mut Decoder::default(), &whole[..cut]) {
                prop_assert!(found.starts_with(&entries));
            }
        }
    }

    #[test]
    fn no_bytes_make_the_reader_panic(slices in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..60), 0..4)) {
        let mut decoder = Decoder::default();
        for slice in slices {
            let _ = dictionary_length(&slice);
            if read(&mut decoder, &slice).is_err() {
                break;
            }
        }
    }
}
