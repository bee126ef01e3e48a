//! Owns where ranks are placed and which GPUs they find there: what a program can learn of the cluster that it runs on.

use crate::cluster::Chosen;
use uniference_host::error::HostError;
use uniference_host::live::phantom::Gpu;
use uniference_host::live::zygote::RankPlacement;
use uniference_sim::cluster::Cluster;

/// All that a program can find out of the cluster that it runs on, and where its compute comes from by itself, as text: on clusters of which this is equal it asks
/// for the same, as long as nothing hangs on time.
pub(crate) fn seen(chosen: &Chosen) -> String {
    let Chosen { resolved, backend_named, .. } = chosen;
    let devices = resolved.cluster.devices.iter().map(|device| device.crash);
    let rates = resolved.rates.iter().map(Option::is_some);
    let ranks = places(&resolved.cluster, &resolved.cores).into_iter().zip(devices).zip(&resolved.models).zip(rates);
    format!("{} {backend_named} {:?}", resolved.cluster.backend.name, ranks.collect::<Vec<_>>())
}

/// Ranks numbered on each machine in order, and machines in the order of their first rank. A machine is a host, or the server that hosts
/// are cards of.
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

/// Bytes that the driver takes for a process on a device: what `nvidia-smi` shows of a process that has only started CUDA 12 or 13 on an H100
/// or A100, with the kernels of PyTorch loaded when they are needed (some 520 MiB; recalled, not measured by this project).
const CONTEXT: u64 = 520 << 20;

/// What a GPU is like whose device has no model in the cluster file, but for its name and what the file says of its memory.
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

/// The GPU of a device: as the driver has its model, or with the device's own name.
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
        // Two transfers a clock (CUDA Runtime API, `cudaDeviceProp`): 2 * clock * bits / 8 bytes a second.
        memory_clock: (bandwidth * 4.0 / f64::from(cuda.bus_bits) / 1e3) as u32,
        memory_bus: cuda.bus_bits,
        l2: cuda.l2.0,
        pci: (0, 0x10 + place.local.0, 0),
        uuid,
        // GeForce cards since the RTX 30 cannot (NVIDIA's driver refuses it); of a Jetson there is one.
        reaches_peers: known.link.is_some() && !cuda.name.contains("GeForce"),
    })
}
