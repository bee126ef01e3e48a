//! ASTRA-sim's system file and network file, with a line of dashes between them: both are accepted or refused, alone
//! and together.

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
