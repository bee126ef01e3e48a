//! Owns cuDNN's functions with a descriptor per tensor: convolutions, batch normalisation, pooling, spatial
//! transformers, CTC. Only CTC needs a workspace.

use super::{
    BAD_PARAM, Library, NOT_SUPPORTED, NULL_POINTER, Pointer, SUCCESS, Status, create, destroy, elements, sizes, wrote,
};
use crate::device;
use crate::exports::{Out, Put, exports};
use crate::kinds::Kind;
use crate::streams;
use std::ffi::{c_int, c_void};
use std::slice::from_raw_parts;

/// Maximum number of dimensions of a tensor: `CUDNN_DIM_MAX`.
const DIMENSIONS: c_int = 8;

/// `cudnnTensorDescriptor_t`, `cudnnFilterDescriptor_t`.
#[derive(Default)]
pub(super) struct Tensor {
    /// `cudnnDataType_t`
    pub(super) number: c_int,
    /// `cudnnTensorFormat_t` of a filter.
    format: c_int,
    pub(super) dimensions: Vec<i64>,
    pub(super) strides: Vec<i64>,
}

type Of<'a> = Option<&'a Tensor>;

/// `cudnnConvolutionDescriptor_t`, and descriptors whose settings do not affect launches.
#[derive(Default)]
struct Settings {
    /// `cudnnMathType_t` of a convolution.
    math: c_int,
}

/// `cudnnDropoutDescriptor_t`.
#[derive(Default)]
pub(super) struct Dropout;

/// `cudnnConvolutionFwdAlgoPerf_t` and its counterparts for the backward functions.
#[repr(C)]
pub(super) struct Performance {
    algorithm: c_int,
    status: Status,
    milliseconds: f32,
    memory: usize,
    determinism: c_int,
    math: c_int,
    reserved: [c_int; 3],
}

/// Declares functions that create and destroy a descriptor.
macro_rules! descriptor {
    ($type:ty; $($create:ident $destroy:ident),* $(,)?) => {
        $(exports! {
            fn $create(place: Out<*mut $type>) -> Status { create(place, <$type>::default()) }
            fn $destroy(descriptor: *mut $type) -> Status { destroy(descriptor) }
        })*
    };
}
descriptor! { Tensor; cudnnCreateTensorDescriptor cudnnDestroyTensorDescriptor, cudnnCreateFilterDescriptor cudnnDestroyFilterDescriptor }
descriptor! { Dropout; cudnnCreateDropoutDescriptor cudnnDestroyDropoutDescriptor }
descriptor! {
    Settings;
    cudnnCreateConvolutionDescriptor cudnnDestroyConvolutionDescriptor,
    cudnnCreateActivationDescriptor cudnnDestroyActivationDescriptor,
    cudnnCreatePoolingDescriptor cudnnDestroyPoolingDescriptor,
    cudnnCreateSpatialTransformerDescriptor cudnnDestroySpatialTransformerDescriptor,
    cudnnCreateCTCLossDescriptor cudnnDestroyCTCLossDescriptor,
}

exports! {
    fn cudnnSetTensorNdDescriptor(
        tensor: Option<&mut Tensor>, number: c_int, count: c_int, dimensions: *const c_int, strides: *const c_int,
    ) -> Status {
        let Some(tensor) = tensor else { return NULL_POINTER };
        if !(1..=DIMENSIONS).contains(&count) || dimensions.is_null() || strides.is_null() {
            return BAD_PARAM;
        }
        // SAFETY: cuDNN requires that both lists have `count` elements.
        let [dimensions, strides] = [dimensions, strides].map(|list| unsafe { list_of(list, count) });
        *tensor = Tensor { number, format: 0, dimensions, strides };
        SUCCESS
    }
    fn cudnnGetTensorNdDescriptor(
        tensor: Of, requested: c_int, number: Out<c_int>, count: Out<c_int>, dimensions: *mut c_int, strides: *mut c_int,
    ) -> Status {
        let Some(tensor) = tensor else { return NULL_POINTER };
        number.put(tensor.number);
        count.put(tensor.dimensions.len() as c_int);
        for (place, list) in [(dimensions, &tensor.dimensions), (strides, &tensor.strides)] {
            put_list(place, list, requested);
        }
        SUCCESS
    }
    fn cudnnSetFilterNdDescriptor(
        filter: Option<&mut Tensor>, number: c_int, format: c_int, count: c_int, dimensions: *const c_int,
    ) -> Status {
        let Some(filter) = filter else { return NULL_POINTER };
        if !(1..=DIMENSIONS).contains(&count) || dimensions.is_null() {
            return BAD_PARAM;
        }
        // SAFETY: cuDNN requires that the list has `count` elements.
        *filter = Tensor { number, format, dimensions: unsafe { list_of(dimensions, count) }, strides: Vec::new() };
        SUCCESS
    }
    fn cudnnGetFilterNdDescriptor(
        filter: Of, requested: c_int, number: Out<c_int>, format: Out<c_int>, count: Out<c_int>, dimensions: *mut c_int,
    ) -> Status {
        let Some(filter) = filter else { return NULL_POINTER };
        number.put(filter.number);
        format.put(filter.format);
        count.put(filter.dimensions.len() as c_int);
        put_list(dimensions, &filter.dimensions, requested);
        SUCCESS
    }
    /// Bytes of random generator states, one per resident thread of the device: 48 bytes each, as for `curandState_t`
    /// (`curand_kernel.h`).
    fn cudnnDropoutGetStatesSize(_handle: Option<&Library>, size: Out<usize>) -> Status {
        let multiprocessors = device::get(device::current()).map_or(1, |device| device.multiprocessors as usize);
        wrote(size.put(multiprocessors * 2048 * 48))
    }
    fn cudnnSetDropoutDescriptor(
        _dropout: *mut Dropout, handle: Option<&Library>, _probability: f32, states: Pointer, size: usize, _seed: u64,
    ) -> Status {
        if let Some(library) = handle && !states.is_null() {
            streams::launch(library.stream, "cudnn dropout states", size as u64);
        }
        SUCCESS
    }
    fn cudnnRestoreDropoutDescriptor(
        _dropout: *mut Dropout, _handle: Option<&Library>, _probability: f32, _states: Pointer, _size: usize, _seed: u64,
    ) -> Status { SUCCESS }
    fn cudnnSetActivationDescriptor(_activation: *mut Settings, _mode: c_int, _nan: c_int, _coefficient: f64) -> Status { SUCCESS }
    fn cudnnSetPooling2dDescriptor(
        _pooling: *mut Settings, _mode: c_int, _nan: c_int, _height: c_int, _width: c_int, _vertical: c_int, _horizontal: c_int,
        _vertical_stride: c_int, _horizontal_stride: c_int,
    ) -> Status { SUCCESS }
    fn cudnnSetSpatialTransformerNdDescriptor(
        _transformer: *mut Settings, _sampler: c_int, _number: c_int, _count: c_int, _dimensions: *const c_int,
    ) -> Status { SUCCESS }
    fn cudnnSetCTCLossDescriptorEx(_loss: *mut Settings, _number: c_int, _normalisation: c_int, _gradients: c_int) -> Status { SUCCESS }
    fn cudnnSetCTCLossDescriptor_v9(
        _loss: *mut Settings, _number: c_int, _normalisation: c_int, _gradients: c_int, _longest: c_int,
    ) -> Status { SUCCESS }

    fn cudnnSetConvolutionNdDescriptor(
        _convolution: *mut Settings, _count: c_int, _padding: *const c_int, _strides: *const c_int, _dilation: *const c_int, _mode: c_int,
        _number: c_int,
    ) -> Status { SUCCESS }
    fn cudnnSetConvolutionGroupCount(_convolution: *mut Settings, _groups: c_int) -> Status { SUCCESS }
    fn cudnnSetConvolutionMathType(convolution: Option<&mut Settings>, math: c_int) -> Status {
        convolution.map_or(NULL_POINTER, |convolution| { convolution.math = math; SUCCESS })
    }
    fn cudnnGetConvolutionForwardWorkspaceSize(
        _handle: Option<&Library>, _x: Of, _w: Of, _convolution: *const Settings, _y: Of, _algorithm: c_int, size: Out<usize>,
    ) -> Status { wrote(size.put(0)) }
    fn cudnnGetConvolutionBackwardDataWorkspaceSize(
        _handle: Option<&Library>, _w: Of, _dy: Of, _convolution: *const Settings, _dx: Of, _algorithm: c_int, size: Out<usize>,
    ) -> Status { wrote(size.put(0)) }
    fn cudnnGetConvolutionBackwardFilterWorkspaceSize(
        _handle: Option<&Library>, _x: Of, _dy: Of, _convolution: *const Settings, _dw: Of, _algorithm: c_int, size: Out<usize>,
    ) -> Status { wrote(size.put(0)) }
    fn cudnnConvolutionForward(
        handle: Option<&Library>, _alpha: Pointer, x: Of, _x_data: Pointer, w: Of, _w_data: Pointer, _convolution: *const Settings, _algorithm: c_int,
        _workspace: Pointer, _size: usize, _beta: Pointer, y: Of, _y_data: Pointer,
    ) -> Status { operator(handle, "convolution forward", &[x, w, y]) }
    fn cudnnConvolutionBackwardData(
        handle: Option<&Library>, _alpha: Pointer, w: Of, _w_data: Pointer, dy: Of, _dy_data: Pointer, _convolution: *const Settings,
        _algorithm: c_int, _workspace: Pointer, _size: usize, _beta: Pointer, dx: Of, _dx_data: Pointer,
    ) -> Status { operator(handle, "convolution backward data", &[w, dy, dx]) }
    fn cudnnConvolutionBackwardFilter(
        handle: Option<&Library>, _alpha: Pointer, x: Of, _x_data: Pointer, dy: Of, _dy_data: Pointer, _convolution: *const Settings,
        _algorithm: c_int, _workspace: Pointer, _size: usize, _beta: Pointer, dw: Of, _dw_data: Pointer,
    ) -> Status { operator(handle, "convolution backward filter", &[x, dw, dy]) }
    fn cudnnConvolutionBiasActivationForward(
        handle: Option<&Library>, _alpha: Pointer, x: Of, _x_data: Pointer, w: Of, _w_data: Pointer, _convolution: *const Settings, _algorithm: c_int,
        _workspace: Pointer, _size: usize, _z_alpha: Pointer, z: Of, _z_data: Pointer, bias: Of, _bias_data: Pointer, _activation: *const Settings,
        y: Of, _y_data: Pointer,
    ) -> Status { operator(handle, "convolution+bias+activation forward", &[x, w, z, bias, y]) }

    fn cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(
        _handle: Option<&Library>, _mode: c_int, _operations: c_int, _x: Of, _z: Of, _y: Of, _scale: Of, _activation: *const Settings,
        size: Out<usize>,
    ) -> Status { wrote(size.put(0)) }
    fn cudnnGetBatchNormalizationBackwardExWorkspaceSize(
        _handle: Option<&Library>, _mode: c_int, _operations: c_int, _x: Of, _y: Of, _dy: Of, _dz: Of, _dx: Of, _scale: Of,
        _activation: *const Settings, size: Out<usize>,
    ) -> Status { wrote(size.put(0)) }
    fn cudnnGetBatchNormalizationTrainingExReserveSpaceSize(
        _handle: Option<&Library>, _mode: c_int, _operations: c_int, _activation: *const Settings, _x: Of, size: Out<usize>,
    ) -> Status { wrote(size.put(0)) }
    fn cudnnBatchNormalizationForwardTrainingEx(
        handle: Option<&Library>, _mode: c_int, _operations: c_int, _alpha: Pointer, _beta: Pointer, x: Of, _x_data: Pointer, _z: Of, _zdata: Pointer,
        y: Of,
    ) -> Status { operator(handle, "batch_norm forward", &[x, y]) }
    fn cudnnBatchNormalizationForwardInference(
        handle: Option<&Library>, _mode: c_int, _alpha: Pointer, _beta: Pointer, x: Of, _x_data: Pointer, y: Of,
    ) -> Status { operator(handle, "batch_norm inference", &[x, y]) }
    fn cudnnBatchNormalizationBackwardEx(
        handle: Option<&Library>, _mode: c_int, _operations: c_int, _alpha: Pointer, _beta: Pointer, _alpha_parameters: Pointer,
        _beta_parameters: Pointer, x: Of, _x_data: Pointer, _y: Of, _ydata: Pointer, dy: Of, _dy_data: Pointer, _dz: Of, _dzdata: Pointer, dx: Of,
    ) -> Status { operator(handle, "batch_norm backward", &[x, dy, dx]) }
    fn cudnnPoolingForward(
        handle: Option<&Library>, _pooling: *const Settings, _alpha: Pointer, x: Of, _x_data: Pointer, _beta: Pointer, y: Of, _y_data: Pointer,
    ) -> Status { operator(handle, "pooling forward", &[x, y]) }
    fn cudnnSpatialTfGridGeneratorForward(
        handle: Option<&Library>, _transformer: *const Settings, _theta: Pointer, _grid: Pointer,
    ) -> Status { operator(handle, "grid_generator forward", &[]) }
    fn cudnnSpatialTfGridGeneratorBackward(
        handle: Option<&Library>, _transformer: *const Settings, _grid: Pointer, _theta: Pointer,
    ) -> Status { operator(handle, "grid_generator backward", &[]) }
    fn cudnnSpatialTfSamplerForward(
        handle: Option<&Library>, _transformer: *const Settings, _alpha: Pointer, x: Of, _x_data: Pointer, _grid: Pointer, _beta: Pointer, y: Of,
        _y_data: Pointer,
    ) -> Status { operator(handle, "grid_sampler forward", &[x, y]) }
    fn cudnnSpatialTfSamplerBackward(
        handle: Option<&Library>, _transformer: *const Settings, _alpha: Pointer, x: Of, _x_data: Pointer, _beta: Pointer, dx: Of, _dx_data: Pointer,
        _alpha_grid: Pointer, dy: Of,
    ) -> Status { operator(handle, "grid_sampler backward", &[x, dy, dx]) }

    /// Bytes of a table of probabilities for each position of the longest target, which cannot be longer than the
    /// input.
    fn cudnnGetCTCLossWorkspaceSize(
        _handle: Option<&Library>, probabilities: Of, _gradients: Of, _labels: *const c_int, _label_lengths: *const c_int,
        _input_lengths: *const c_int, _algorithm: c_int, _loss: *const Settings, size: Out<usize>,
    ) -> Status { probabilities.map_or(NULL_POINTER, |tensor| wrote(size.put(tensor.bytes() as usize))) }
    fn cudnnGetCTCLossWorkspaceSize_v8(
        _handle: Option<&Library>, _algorithm: c_int, _loss: *const Settings, probabilities: Of, _gradients: Of, size: Out<usize>,
    ) -> Status { probabilities.map_or(NULL_POINTER, |tensor| wrote(size.put(tensor.bytes() as usize))) }
    fn cudnnCTCLoss(
        handle: Option<&Library>, probabilities: Of, _data: Pointer, _labels: *const c_int, _label_lengths: *const c_int,
        _input_lengths: *const c_int, _costs: *mut c_void, gradients: Of,
    ) -> Status { operator(handle, "ctc_loss", &[probabilities, gradients]) }
    fn cudnnCTCLoss_v8(
        handle: Option<&Library>, _algorithm: c_int, _loss: *const Settings, probabilities: Of, _data: Pointer, _labels: *const c_int,
        _label_lengths: *const c_int, _input_lengths: *const c_int, _costs: *mut c_void, gradients: Of,
    ) -> Status { operator(handle, "ctc_loss", &[probabilities, gradients]) }
}

/// Declares functions that find an algorithm. The only one has number 1 in all three enumerations: implicit GEMM.
macro_rules! found {
    ($($get:ident $find:ident),* $(,)?) => {
        $(exports! {
            fn $get(
                _handle: Option<&Library>, _first: Of, _second: Of, convolution: Option<&Settings>, _third: Of, requested: c_int,
                count: Out<c_int>, results: *mut Performance,
            ) -> Status {
                found(convolution, requested, count, results)
            }
            fn $find(
                _handle: Option<&Library>, _first: Of, _one: Pointer, _second: Of, _two: Pointer, convolution: Option<&Settings>, _third: Of,
                _three: Pointer, requested: c_int, count: Out<c_int>, results: *mut Performance, _workspace: Pointer, _size: usize,
            ) -> Status {
                found(convolution, requested, count, results)
            }
        })*
    };
}
found! {
    cudnnGetConvolutionForwardAlgorithm_v7 cudnnFindConvolutionForwardAlgorithmEx,
    cudnnGetConvolutionBackwardDataAlgorithm_v7 cudnnFindConvolutionBackwardDataAlgorithmEx,
    cudnnGetConvolutionBackwardFilterAlgorithm_v7 cudnnFindConvolutionBackwardFilterAlgorithmEx,
}

fn found(convolution: Option<&Settings>, requested: c_int, count: Out<c_int>, results: *mut Performance) -> Status {
    let Some(Settings { math }) = convolution else { return NULL_POINTER };
    if requested < 1 || results.is_null() {
        return BAD_PARAM;
    }
    // The algorithm is deterministic.
    let result = Performance {
        algorithm: 1,
        status: SUCCESS,
        milliseconds: 0.0,
        memory: 0,
        determinism: 1,
        math: *math,
        reserved: [0; 3],
    };
    // SAFETY: cuDNN requires space for as many results as requested, which is at least one.
    unsafe { results.write(result) };
    wrote(count.put(1))
}

impl Tensor {
    /// Bytes of the elements.
    pub(super) fn bytes(&self) -> u64 {
        Kind::of_cudnn(self.number).map_or(0, |kind| kind.bytes(elements(&self.dimensions)))
    }
}

/// Launches a kernel whose name contains the first tensor's type and the first two tensors' sizes.
fn operator(handle: Option<&Library>, name: &str, tensors: &[Of]) -> Status {
    let Some(library) = handle else { return NULL_POINTER };
    let mut kernel = format!("cudnn {name}");
    if let Some(Some(first)) = tensors.first() {
        let Some(kind) = Kind::of_cudnn(first.number) else { return NOT_SUPPORTED };
        kernel = format!("{kernel} {}", kind.name);
    }
    for tensor in tensors.iter().take(2).flatten() {
        kernel = format!("{kernel} {}", sizes(&tensor.dimensions));
    }
    streams::launch(library.stream, &kernel, tensors.iter().flatten().map(|tensor| tensor.bytes()).sum());
    SUCCESS
}

/// # Safety
/// `list` must have `count` elements.
unsafe fn list_of(list: *const c_int, count: c_int) -> Vec<i64> {
    // SAFETY: descriptor functions pass a list with `count` elements.
    unsafe { from_raw_parts(list, count as usize) }.iter().map(|&value| i64::from(value)).collect()
}

fn put_list(place: *mut c_int, list: &[i64], requested: c_int) {
    if !place.is_null() {
        for (index, &value) in list.iter().enumerate().take(usize::try_from(requested).unwrap_or(0)) {
            // SAFETY: cuDNN requires space for as many elements as requested.
            unsafe { place.add(index).write(value as c_int) };
        }
    }
}
