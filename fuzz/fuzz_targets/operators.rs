//! Slices of a rank's operator stream: a slice that is read is written in canonical form, which reads the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use uniference_formats::operators::{Autograd, Decoder, Encoder, Entry, dictionary_length};

fuzz_target!(|data: &[u8]| {
    let mut decoder = Decoder::default();
    let mut again = Encoder::default();
    let (mut shown, mut written) = (0, 0);
    // Slices are separated by a byte that is no valid tag.
    for slice in data.split(|byte| *byte == 0xff) {
        let _ = dictionary_length(slice);
        let read = decoder.read(slice, |_, entry| {
            shown += 1;
            write(&mut again, entry);
        });
        if read.is_err() {
            break;
        }
    }
    let mut reader = Decoder::default();
    let mut dictionary = Encoder::default();
    decoder.definitions().iter().for_each(|definition| dictionary.definition(definition));
    (1..).map_while(|site| decoder.source_line(site)).for_each(|site| dictionary.site(&site.line, &site.function));
    decoder.kernels().iter().for_each(|name| dictionary.kernel(name));
    reader.read(&dictionary.take(), |_, _| unreachable!("a dictionary has no entries")).expect("it was just written");
    assert_eq!(reader.definitions(), decoder.definitions());
    reader.read(&again.take(), |_, _| written += 1).expect("it was just written");
    assert_eq!(written, shown);
});

fn write(encoder: &mut Encoder, entry: Entry<'_>) {
    match entry {
        Entry::Execution { definition, line, allocations, autograd } => {
            encoder.recorded(autograd == Autograd::Recording);
            encoder.execution(definition, line, allocations);
        }
        Entry::Allocated { allocation, bytes, on_gpu: false } => encoder.allocated(allocation, bytes),
        Entry::Allocated { allocation, bytes, on_gpu: true } => encoder.allocated_on_gpu(allocation, bytes),
        Entry::Level { level, bytes } => encoder.level(level, bytes),
        Entry::Freed { allocation } => encoder.freed(allocation),
        Entry::Kind { allocation, kind } => encoder.kind(allocation, kind),
        Entry::Timed { before, lasted } => encoder.timed(before, lasted),
        Entry::Called { allocation, written } => encoder.called(allocation, written),
        Entry::Answered { line, operator } => encoder.answered(line, operator),
        Entry::Stream(entry) => encoder.stream(entry),
        Entry::Number(number) => encoder.launch_number(number),
        Entry::PythonCalls(calls) => encoder.python_calls(calls),
        Entry::Integers { buffer, values } => encoder.integers(buffer, values),
        Entry::Reading(reading) => encoder.reading(reading),
    }
}
