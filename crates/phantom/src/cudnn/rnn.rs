//! Owns cuDNN's recurrent networks: the layout of their weights in one buffer, and their launches.
//!
//! The layout is this library's own, not cuDNN's: programs query the address of each matrix. Workspace sizes
//! are the algorithm's needs.

use super::operators::{Dropout, Tensor};
use super::{BAD_PARAM, Library, NOT_SUPPORTED, NULL_POINTER, Pointer, SUCCESS, Status, create, destroy, wrote};
use crate::exports::{Out, Put, exports};
use crate::kinds::Kind;
use crate::streams;
use std::ffi::{c_int, c_void};

/// `cudnnRNNDescriptor_t`.
#[derive(Default)]
struct Network {
    /// `cudnnRNNMode_t`
    mode: c_int,
    /// `cudnnRNNBiasMode_t`
    biases: c_int,
    directions: u64,
    /// Whether the first layer uses its input without a matrix (`CUDNN_SKIP_INPUT`).
    skips: bool,
    /// `cudnnDataType_t`
    number: c_int,
    input: u64,
    hidden: u64,
    /// Size of the projection; 0: none.
    projection: u64,
    layers: u64,
}

/// `cudnnRNNDataDescriptor_t`.
#[derive(Default)]
struct Sequences {
    steps: u64,
    batch: u64,
    width: u64,
}

/// A matrix or a bias vector: rows, columns, and offset in elements.
struct Place {
    rows: u64,
    columns: u64,
    offset: u64,
}

exports! {
    fn cudnnCreateRNNDescriptor(place: Out<*mut Network>) -> Status { create(place, Network::default()) }
    fn cudnnDestroyRNNDescriptor(network: *mut Network) -> Status { destroy(network) }
    fn cudnnSetRNNDescriptor_v8(
        network: Option<&mut Network>, _algorithm: c_int, mode: c_int, biases: c_int, direction: c_int, input_mode: c_int, number: c_int,
        _precision: c_int, _math: c_int, input: i32, hidden: i32, projection: i32, layers: i32, _dropout: *const Dropout, _flags: u32,
    ) -> Status {
        let (Some(network), [Ok(input), Ok(hidden), Ok(projection), Ok(layers)]) =
            (network, [input, hidden, projection, layers].map(u64::try_from)) else { return BAD_PARAM };
        if !(0..=3).contains(&mode) || Kind::of_cudnn(number).is_none() {
            return NOT_SUPPORTED;
        }
        let projection = if projection == hidden { 0 } else { projection };
        let directions = if direction == 1 { 2 } else { 1 };
        *network = Network { mode, biases, directions, skips: input_mode == 1, number, input, hidden, projection, layers };
        SUCCESS
    }
    fn cudnnCreateRNNDataDescriptor(place: Out<*mut Sequences>) -> Status { create(place, Sequences::default()) }
    fn cudnnDestroyRNNDataDescriptor(data: *mut Sequences) -> Status { destroy(data) }
    fn cudnnSetRNNDataDescriptor(
        data: Option<&mut Sequences>, _number: c_int, _layout: c_int, steps: c_int, batch: c_int, width: c_int, _lengths: *const c_int,
        _fill: Pointer,
    ) -> Status {
        let (Some(data), [Ok(steps), Ok(batch), Ok(width)]) = (data, [steps, batch, width].map(u64::try_from)) else { return BAD_PARAM };
        *data = Sequences { steps, batch, width };
        SUCCESS
    }
    fn cudnnGetRNNWeightSpaceSize(_handle: Option<&Library>, network: Option<&Network>, size: Out<usize>) -> Status {
        network.map_or(NULL_POINTER, |network| wrote(size.put(network.bytes(network.end()) as usize)))
    }
    fn cudnnGetRNNWeightParams(
        _handle: Option<&Library>, network: Option<&Network>, layer: i32, _size: usize, weights: *mut c_void, id: i32,
        matrix: Option<&mut Tensor>, matrix_place: Out<*mut c_void>, bias: Option<&mut Tensor>, bias_place: Out<*mut c_void>,
    ) -> Status {
        let (Some(network), Ok(layer), Ok(id)) = (network, u64::try_from(layer), u64::try_from(id)) else { return BAD_PARAM };
        if layer >= network.layers * network.directions {
            return BAD_PARAM;
        }
        network.describe(network.matrix(layer, id), weights, matrix, matrix_place);
        network.describe(network.bias(layer, id), weights, bias, bias_place);
        SUCCESS
    }
    /// The workspace has the gates of one step of a layer; the reserve space for training has gates, cell and output of
    /// each step in all layers.
    fn cudnnGetRNNTempSpaceSizes(
        _handle: Option<&Library>, network: Option<&Network>, mode: c_int, x: Option<&Sequences>, workspace: Out<usize>, reserve: Out<usize>,
    ) -> Status {
        let (Some(network), Some(x)) = (network, x) else { return NULL_POINTER };
        let step = x.batch * network.directions * network.hidden;
        workspace.put(network.bytes(step * network.gates()) as usize);
        let kept = if mode == 1 { step * (network.gates() + 2) * x.steps * network.layers } else { 0 };
        reserve.put(network.bytes(kept) as usize);
        SUCCESS
    }
    fn cudnnRNNForward(
        handle: Option<&Library>, network: Option<&Network>, _mode: c_int, _lengths: *const i32, x: Option<&Sequences>, _x_data: Pointer,
    ) -> Status { launch(handle, network, x, "forward") }
    fn cudnnRNNBackwardData_v8(
        handle: Option<&Library>, network: Option<&Network>, _lengths: *const i32, _y: Option<&Sequences>, _ydata: Pointer, _dy_data: Pointer,
        x: Option<&Sequences>,
    ) -> Status { launch(handle, network, x, "backward data") }
    fn cudnnRNNBackwardWeights_v8(
        handle: Option<&Library>, network: Option<&Network>, _add: c_int, _lengths: *const i32, x: Option<&Sequences>,
    ) -> Status { launch(handle, network, x, "backward weights") }
}

fn launch(handle: Option<&Library>, network: Option<&Network>, x: Option<&Sequences>, way: &str) -> Status {
    let (Some(library), Some(network), Some(x)) = (handle, network, x) else { return NULL_POINTER };
    let cell = ["rnn_relu", "rnn_tanh", "lstm", "gru"][network.mode as usize];
    let Some(kind) = Kind::of_cudnn(network.number) else { return NOT_SUPPORTED };
    let Network { hidden, layers, directions, .. } = *network;
    let Sequences { steps, batch, width } = *x;
    let name = format!(
        "cudnn {cell} {way} {} {steps}x{batch}x{width} hidden {hidden} layers {layers} directions {directions}",
        kind.name
    );
    let output = steps * batch * directions * network.output();
    streams::launch(library.stream, &name, network.bytes(network.end() + steps * batch * width + output));
    SUCCESS
}

impl Network {
    fn bytes(&self, elements: u64) -> u64 {
        Kind::of_cudnn(self.number).map_or(0, |kind| kind.bytes(elements))
    }

    /// Number of matrices for the input, and of matrices for the state.
    fn gates(&self) -> u64 {
        [1, 1, 4, 3][self.mode as usize]
    }

    /// Output size of a direction of a layer.
    fn output(&self) -> u64 {
        if self.projection == 0 { self.hidden } else { self.projection }
    }

    /// Matrix `id` of a layer's direction: input matrices, state matrices, the projection. Without columns, the matrix
    /// does not exist.
    fn matrix(&self, layer: u64, id: u64) -> Place {
        let offset = self.offset(layer, id);
        let (rows, columns) = self.shape(layer, id);
        Place { rows, columns, offset }
    }

    fn shape(&self, layer: u64, id: u64) -> (u64, u64) {
        let gates = self.gates();
        if id < gates {
            let width = match layer / self.directions {
                0 if self.skips => 0,
                0 => self.input,
                _ => self.output() * self.directions,
            };
            (self.hidden, width)
        } else if id < 2 * gates {
            (self.hidden, self.output())
        } else if id == 2 * gates && self.projection != 0 {
            (self.projection, self.hidden)
        } else {
            (0, 0)
        }
    }

    /// Offset of matrix `id`. All matrices of a layer's direction precede those of the next.
    fn offset(&self, layer: u64, id: u64) -> u64 {
        let size = |layer, id| {
            let (rows, columns) = self.shape(layer, id);
            rows * columns
        };
        let before = (0..layer).flat_map(|layer| (0..=2 * self.gates()).map(move |id| size(layer, id)));
        before.sum::<u64>() + (0..id).map(|id| size(layer, id)).sum::<u64>()
    }

    /// Bias `id`. All biases follow all matrices. `CUDNN_RNN_NO_BIAS`, `SINGLE_INP_BIAS`, `DOUBLE_BIAS`,
    /// `SINGLE_REC_BIAS`.
    fn bias(&self, layer: u64, id: u64) -> Place {
        let gates = self.gates();
        let (first, count) = [(0, 0), (0, gates), (0, 2 * gates), (gates, gates)][self.biases.clamp(0, 3) as usize];
        let matrices = self.offset(self.layers * self.directions, 0);
        let offset = matrices + (layer * count + id.saturating_sub(first).min(count)) * self.hidden;
        let rows = if (first..first + count).contains(&id) { self.hidden } else { 0 };
        Place { rows, columns: 1, offset }
    }

    /// Number of elements of all matrices and biases.
    fn end(&self) -> u64 {
        self.bias(self.layers * self.directions, 0).offset
    }

    /// Writes the tensor and the address of a matrix; a null address if the matrix does not exist.
    fn describe(&self, place: Place, weights: *mut c_void, tensor: Option<&mut Tensor>, address: Out<*mut c_void>) {
        let Place { rows, columns, offset } = place;
        if rows * columns == 0 {
            address.put(std::ptr::null_mut());
            return;
        }
        address.put(weights.wrapping_byte_add(self.bytes(offset) as usize));
        if let Some(tensor) = tensor {
            let (rows, columns) = (rows as i64, columns as i64);
            tensor.number = self.number;
            tensor.dimensions = vec![1, rows, columns];
            tensor.strides = vec![rows * columns, columns, 1];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A matrix starts where the one before it ends, biases follow the matrices, and the buffer ends with the last bias.
    #[test]
    fn places_of_weights_do_not_overlap() {
        for (mode, gates) in [(0, 1), (2, 4), (3, 3)] {
            for (directions, projection) in [(1, 0), (2, 0), (2, 5)] {
                let network = Network {
                    mode,
                    biases: 2,
                    directions,
                    skips: false,
                    number: 0,
                    input: 7,
                    hidden: 11,
                    projection,
                    layers: 3,
                };
                let mut end = 0;
                for layer in 0..3 * directions {
                    for id in 0..=2 * gates {
                        let Place { rows, columns, offset } = network.matrix(layer, id);
                        assert_eq!(offset, end);
                        end += rows * columns;
                    }
                }
                for layer in 0..3 * directions {
                    for id in 0..2 * gates {
                        let Place { rows, columns, offset } = network.bias(layer, id);
                        assert_eq!((rows, columns, offset), (11, 1, end));
                        end += rows;
                    }
                }
                assert_eq!(network.end(), end);
            }
        }
    }
}
