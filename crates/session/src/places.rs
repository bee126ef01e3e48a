//! Owns the placement of ranks on machines and the GPUs that ranks find there: the properties of its cluster that a
//! program can query.

use crate::cluster::Chosen;
use uniference_host::error::HostError;
use uniference_host::live::phantom::Gpu;
use uniference_host::live::zygote::RankPlacement;
use uniference_sim::cluster::Cluster;

/// Text of all cluster properties that a program can query, and of the source of its compute times. On clusters with
/// equal text the program makes the same requests, unless they depend on time.
pub(crate) fn seen(chosen: &Chosen) -> String {
    let Chosen { resolved, backend_named, .. } = chosen;
    let devices = resolved.cluster.devices.iter().map(|device| device.crash);
    let rates = resolved.rates.iter().map(Option::is_some);
    let ranks = places(&resolved.cluster, &resolved.cores).into_iter().zip(devices).zip(&resolved.models).zip(rates);
    format!("{} {backend_named} {:?}", resolved.cluster.backend.name, ranks.collect::<Vec<_>>())
}

/// The placement of each rank: ranks are numbered in order on each machine, and machines are numbered in the order of
/// their first rank. A machine is a host, or the server whose GPUs are hosts of the cluster.
pub(crate) fn places(cluster: &Cluster, cores: &[Option<u32>]) -> Vec<RankPlacement> {
    let mut machines = Vec::new();
    let mut counts = Vec::new();
    let numbered: Vec<(u32, u32)> = cluster
        .devices
        .iter()
        .map(|device| {
            let machine = cluster.topology.server(device.host);
            let at = machines.iter().position(|known| *known == machine).unwrap_or_else(|| {
                machines.push(machine);
                counts.push(0);
                machines.len() - 1
            });
            counts[at] += 1;
            (at as u32, counts[at] - 1)
        })
        .collect();
    let world_size = numbered.len() as u32;
    let place = |rank: usize| {
        let ((group, local), device) = (numbered[rank], &cluster.devices[rank]);
        RankPlacement {
            rank: rank as u32,
            world_size,
            local: (local, counts[group as usize]),
            group: (group, machines.len() as u32),
            device: device.name.clone(),
            memory: device.memory.map(|bytes| bytes.0),
            cores: cores[rank],
            gpus: Vec::new(),
            lends: false,
        }
    };
    (0..numbered.len()).map(place).collect()
}

/// Bytes that the driver uses per process on a device: `nvidia-smi` shows some 520 MiB for a process that has only
/// started CUDA 12 or 13 on an H100 or A100, with PyTorch's kernels loaded lazily (recalled, not measured by this
/// project).
const CONTEXT: u64 = 520 << 20;

/// The GPU model that programs see for a device without a model in the cluster file, except for the GPU's name and the
/// memory that the file gives.
const DEFAULT_GPU: &str = "h100-sxm";

/// Gives each rank the GPUs of its host.
pub(crate) fn give_gpus(places: &mut [RankPlacement], models: &[Option<String>]) -> Result<(), HostError> {
    let gpus = places.iter().zip(models).map(|(place, model)| gpu(place, model.as_deref()));
    let gpus = gpus.collect::<Result<Vec<Gpu>, HostError>>()?;
    let hosts: Vec<u32> = places.iter().map(|place| place.group.0).collect();
    for place in places {
        let own = hosts.iter().zip(&gpus).filter(|(host, _)| **host == place.group.0);
        place.gpus = own.map(|(_, gpu)| gpu.clone()).collect();
    }
    Ok(())
}

/// The GPU that the driver shows for a device: the GPU of its model, or a default GPU under the device's own name.
pub(crate) fn gpu(place: &RankPlacement, model: Option<&str>) -> Result<Gpu, HostError> {
    let known = uniference_formats::devices::find(model.unwrap_or(DEFAULT_GPU));
    let known = known.map_err(|error| {
        HostError::Usage(format!(
            "{}\nhint: leave `model` out to simulate a GPU that is not in the table: programs then see a {DEFAULT_GPU} with the file's rates and memory",
            error.message
        ))
    })?;
    let cuda = known.cuda().ok_or_else(|| {
        let RankPlacement { rank, device, .. } = place;
        let hint = "name a GPU of NVIDIA's in the cluster file, as model = \"h100-sxm\" (`uniference devices list` shows them), or run the program without GPUs: --no-cuda";
        let why = match known.vendor == "nvidia" {
            true => "of which it is not known what NVIDIA's driver says",
            false => "and only NVIDIA's GPUs are simulated",
        };
        HostError::Usage(format!("rank {rank}'s device `{device}` is a {}, {why}\nhint: {hint}", known.name))
    })?;
    let bandwidth = known.bandwidth().unwrap_or_default();
    let [host, local] = [place.group.0, place.local.0].map(u32::to_be_bytes);
    let mut uuid = *b"uniferen\0\0\0\0\0\0\0\0";
    uuid[8..12].copy_from_slice(&host);
    uuid[12..].copy_from_slice(&local);
    Ok(Gpu {
        name: model.map_or(place.device.as_str(), |_| cuda.name).to_owned(),
        capability: cuda.capability,
        multiprocessors: cuda.multiprocessors,
        memory: place.memory.or(known.memory().map(|bytes| bytes.0)).unwrap_or_default(),
        context: CONTEXT,
        bandwidth: bandwidth as u64,
        clock: cuda.clock_khz,
        // Memory makes two transfers per clock (CUDA Runtime API, `cudaDeviceProp`): 2 * clock * bits / 8 bytes per
        // second.
        memory_clock: (bandwidth * 4.0 / f64::from(cuda.bus_bits) / 1e3) as u32,
        memory_bus: cuda.bus_bits,
        l2: cuda.l2.0,
        pci: (0, 0x10 + place.local.0, 0),
        uuid,
        // GeForce GPUs since the RTX 30 series have no peer access (NVIDIA's driver refuses it); a Jetson has only one
        // GPU.
        reaches_peers: known.link.is_some() && !cuda.name.contains("GeForce"),
    })
}
