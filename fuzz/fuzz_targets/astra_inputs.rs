//! ASTRA-sim's system and network, one after the other with a line of dashes between: understood or refused, together too.

#![no_main]

use libfuzzer_sys::fuzz_target;
use uniference_formats::astra::closed_form::{Kind, Model};
use uniference_formats::astra::inputs::{Network, System};

fuzz_target!(|text: &str| {
    let (system, network) = text.split_once("\n---\n").unwrap_or((text, text));
    let (system, network) = (System::parse(system), Network::parse(network));
    if let (Ok(system), Ok(network)) = (system, network) {
        let model = Model::new(system, network, 1);
        for kind in [Kind::AllReduce, Kind::ReduceScatter, Kind::AllGather, Kind::AllToAll] {
            let _ = model.collective(kind, 8, &[0]);
        }
    }
});
