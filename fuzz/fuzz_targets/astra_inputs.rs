//! ASTRA-sim's system and network files, separated by a line of dashes: parsed or refused, also in combination.

#![no_main]

use libfuzzer_sys::fuzz_target;
use uniference_formats::astra::inputs::{AstraCollective, Network, System};
use uniference_programs::astra::closed_form::AnalyticalModel;

fuzz_target!(|text: &str| {
    let (system, network) = text.split_once("\n---\n").unwrap_or((text, text));
    let (system, network) = (System::parse(system), Network::parse(network));
    if let (Ok(system), Ok(network)) = (system, network) {
        let model = AnalyticalModel::new(system, network, 1);
        for kind in [
            AstraCollective::AllReduce,
            AstraCollective::ReduceScatter,
            AstraCollective::AllGather,
            AstraCollective::AllToAll,
        ] {
            let _ = model.collective(kind, 8, &[0]);
        }
    }
});
