// Owns values of operators that only GPUs have, computed by CPU operators.
#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <string>
#include <unordered_map>

#include "attention.h"
#include "packed_attention.h"

namespace uniference {

// Computes an operator. The arguments are CPU tensors on the stack, and the results replace them. `seed`: seed of
// random numbers, if the operator uses any.
using Substitute = void (*)(torch::jit::Stack& stack, uint64_t seed);

class Substitutes {
 public:
  // The substitute for the operator of this name; null: none.
  static Substitute of(const std::string& name) {
    const auto found = all().find(name);
    return found == all().end() ? nullptr : found->second;
  }

 private:
  using Stack = torch::jit::Stack;

  static const std::unordered_map<std::string, Substitute>& all() {
    static const std::unordered_map<std::string, Substitute> functions = {
        {"aten::_scaled_dot_product_flash_attention", &Attention::flash},
        {"aten::_scaled_dot_product_efficient_attention", &Attention::efficient},
        {"aten::_scaled_dot_product_cudnn_attention", &Attention::cudnn},
        {"aten::_scaled_dot_product_flash_attention_backward", &Attention::flash_backward},
        {"aten::_scaled_dot_product_efficient_attention_backward", &Attention::efficient_backward},
        {"aten::_scaled_dot_product_cudnn_attention_backward", &Attention::cudnn_backward},
        {"aten::_flash_attention_forward", &PackedAttention::flash},
        {"aten::_flash_attention_forward_no_dropout_inplace", &PackedAttention::flash_to},
        {"aten::_cudnn_attention_forward_no_dropout_inplace", &PackedAttention::cudnn_to},
        {"aten::_efficient_attention_forward", &PackedAttention::efficient},
        {"aten::_cudnn_attention_forward", &PackedAttention::cudnn},
        {"aten::_flash_attention_backward", &PackedAttention::flash_backward},
        {"aten::_efficient_attention_backward", &PackedAttention::efficient_backward},
        {"aten::_cudnn_attention_backward", &PackedAttention::cudnn_backward},
        {"aten::mm.dtype", [](Stack& s, uint64_t) { s = {at::mm(wide(s[0]), wide(s[1])).to(s[2].toScalarType())}; }},
        {"aten::bmm.dtype", [](Stack& s, uint64_t) { s = {at::bmm(wide(s[0]), wide(s[1])).to(s[2].toScalarType())}; }},
        {"aten::addmm.dtype", [](Stack& s, uint64_t) { s = {addmm(s).to(s[3].toScalarType())}; }},
        {"aten::baddbmm.dtype", [](Stack& s, uint64_t) { s = {baddbmm(s).to(s[3].toScalarType())}; }},
        {"aten::mm.dtype_out", [](Stack& s, uint64_t) { s = {s[3].toTensor().copy_(at::mm(wide(s[0]), wide(s[1])))}; }},
        {"aten::bmm.dtype_out",
         [](Stack& s, uint64_t) { s = {s[3].toTensor().copy_(at::bmm(wide(s[0]), wide(s[1])))}; }},
        {"aten::addmm.dtype_out", [](Stack& s, uint64_t) { s = {s[6].toTensor().copy_(addmm(s))}; }},
        {"aten::baddbmm.dtype_out", [](Stack& s, uint64_t) { s = {s[6].toTensor().copy_(baddbmm(s))}; }},
        // The choice of a cuSOLVER routine has no meaning on the CPU.
        {"aten::_linalg_svd",
         [](Stack& s, uint64_t) {
           auto [u, values, v] = at::_linalg_svd(s[0].toTensor(), s[1].toBool(), s[2].toBool());
           // Strides as in PyTorch's own implementation for GPUs (`torch/_meta_registrations.py`).
           s = {u, values, v.contiguous()};
         }},
        {"aten::_softmax", [](Stack& s, uint64_t) { s = {at::_softmax(widened(s[0], s[2]), s[1].toInt(), false)}; }},
        {"aten::_log_softmax",
         [](Stack& s, uint64_t) { s = {at::_log_softmax(widened(s[0], s[2]), s[1].toInt(), false)}; }},
        {"aten::_softmax_backward_data", &softmax_backward<&at::_softmax_backward_data>},
        {"aten::_log_softmax_backward_data", &softmax_backward<&at::_log_softmax_backward_data>},
        {"aten::_fused_rms_norm_backward", &rms_norm_backward},
        {"aten::native_layer_norm_backward", &layer_norm_backward},
        {"aten::native_group_norm_backward", &group_norm_backward},
        // The CPU keeps an intermediate result that a GPU recomputes.
        {"aten::log_sigmoid_forward",
         [](Stack& s, uint64_t) { s = {at::log_sigmoid(s[0].toTensor()), at::empty({0}, s[0].toTensor().options())}; }},
        {"aten::log_sigmoid_backward", [](Stack& s, uint64_t) { s = {log_sigmoid_gradient(s)}; }},
        {"aten::log_sigmoid_forward.output",
         [](Stack& s, uint64_t) { s = {s[1].toTensor().copy_(at::log_sigmoid(s[0].toTensor())), s[2].toTensor()}; }},
        {"aten::log_sigmoid_backward.grad_input",
         [](Stack& s, uint64_t) { s = {s[3].toTensor().copy_(log_sigmoid_gradient(s))}; }},
        {"aten::_embedding_bag", &embedding_bag},
        {"aten::_embedding_bag_forward_only", &embedding_bag},
        // Bilinear, with zeros outside of the image and aligned corners.
        {"aten::cudnn_grid_sampler",
         [](Stack& s, uint64_t) { s = {at::grid_sampler_2d(s[0].toTensor(), s[1].toTensor(), 0, 0, true)}; }},
        {"aten::cudnn_grid_sampler_backward",
         [](Stack& s, uint64_t) {
           auto [of_input, of_grid] = at::grid_sampler_2d_backward(
               s[2].toTensor(), s[0].toTensor(), s[1].toTensor(), 0, 0, true, {true, true});
           s = {of_input, of_grid};
         }},
        {"aten::native_batch_norm", [](Stack& s, uint64_t) { normalize_batch(s, {s[3], s[4]}, s[5].toBool(), 6); }},
        {"aten::_native_batch_norm_legit",
         [](Stack& s, uint64_t) { normalize_batch(s, {s[3], s[4]}, s[5].toBool(), 6); }},
        {"aten::_native_batch_norm_legit.no_stats",
         [](Stack& s, uint64_t) { normalize_batch(s, {}, s[3].toBool(), 4); }},
        {"aten::_batch_norm_with_update",
         [](Stack& s, uint64_t) {
           normalize_batch(s, {s[3], s[4]}, /*training=*/true, 5);
           s.push_back(at::empty({0}, at::kByte));
         }},
        {"aten::native_batch_norm_backward", &native_batch_norm_backward},
        {"aten::batch_norm_backward", &native_batch_norm_backward},
        {"aten::cudnn_batch_norm", &batch_norm},
        {"aten::cudnn_batch_norm_backward", &batch_norm_backward},
        {"aten::batch_norm_stats", &batch_norm_stats},
        {"aten::batch_norm_elemt", &batch_norm_elements},
        {"aten::batch_norm_gather_stats_with_counts", &batch_norm_gather},
        {"aten::batch_norm_backward_reduce", &batch_norm_backward_reduce},
        {"aten::batch_norm_backward_elemt", &batch_norm_backward_elements},
        {"aten::linalg_eig",
         [](Stack& s, uint64_t) {
           auto [values, vectors] = at::linalg_eig(s[0].toTensor());
           s = {values, vectors.contiguous()};
         }},
        {"aten::_thnn_fused_lstm_cell", &lstm_cell},
        {"aten::_thnn_fused_lstm_cell_backward_impl", &lstm_cell_backward},
        {"aten::_thnn_fused_gru_cell", &gru_cell},
        {"aten::_thnn_fused_gru_cell_backward", &gru_cell_backward},
        {"aten::_cudnn_rnn", &rnn},
        {"aten::_cudnn_rnn_backward", &rnn_backward},
    };
    return functions;
  }

  static at::Tensor wide(const at::Tensor& tensor) {
    return tensor.scalar_type() == at::kDouble ? tensor : tensor.to(at::kFloat);
  }
  static at::Tensor wide(const c10::IValue& value) { return wide(value.toTensor()); }

  // (self, left, right, out_dtype, beta, alpha)
  static at::Tensor addmm(const Stack& s) {
    return at::addmm(wide(s[0]), wide(s[1]), wide(s[2]), s[4].toScalar(), s[5].toScalar());
  }
  static at::Tensor baddbmm(const Stack& s) {
    return at::baddbmm(wide(s[0]), wide(s[1]), wide(s[2]), s[4].toScalar(), s[5].toScalar());
  }

  static at::Tensor wide_or_none(const at::Tensor& tensor) { return tensor.defined() ? wide(tensor) : tensor; }
  static at::Tensor wide_or_none(const c10::IValue& value) { return wide_or_none(tensor_or_none(value)); }
  static at::Tensor tensor_or_none(const c10::IValue& value) {
    return value.isNone() ? at::Tensor() : value.toTensor();
  }

  // GPUs accept half precision and return single precision in one operator.
  static at::Tensor widened(const c10::IValue& input, const c10::IValue& to_float) {
    return to_float.toBool() ? wide(input) : input.toTensor();
  }

  // (grad_output, output, dim, input_dtype) -> grad_input
  template <at::Tensor (*function)(const at::Tensor&, const at::Tensor&, int64_t, at::ScalarType)>
  static void softmax_backward(Stack& s, uint64_t) {
    const at::Tensor outer = s[0].toTensor();
    s = {function(outer, s[1].toTensor(), s[2].toInt(), outer.scalar_type()).to(s[3].toScalarType())};
  }

  // (grad_output, input, buffer)
  static at::Tensor log_sigmoid_gradient(const Stack& s) {
    return (wide(s[0]) * at::sigmoid(-wide(s[1]))).to(s[1].toTensor().scalar_type());
  }

  // (weight, indices, offsets, scale_grad_by_freq, mode, sparse, per_sample_weights?, include_last_offset, padding_idx)
  // -> (output, the bag of each index, sizes of bags, indices of maxima). GPUs return only the last of the maxima, and
  // a size for each offset.
  static void embedding_bag(Stack& s, uint64_t) {
    constexpr int64_t kMaxima = 2;
    const at::Tensor indices = s[1].toTensor(), offsets = s[2].toTensor();
    const int64_t mode = s[4].toInt();
    const auto [output, bags, sizes, maxima] = at::_embedding_bag(
        s[0].toTensor(), indices, offsets, s[3].toBool(), mode, s[5].toBool(), tensor_or_none(s[6]), s[7].toBool(),
        s[8].toInt());
    // The CPU leaves out the bag of each index if it does not need it.
    const at::Tensor begun =
        at::searchsorted(offsets, at::arange(indices.size(0), offsets.options()), /*out_int32=*/false, /*right=*/true);
    const at::Tensor all_bags =
        bags.numel() == indices.numel() ? bags : (begun - 1).clamp(0, output.size(0) - 1).to(indices.scalar_type());
    const at::Tensor all_sizes = at::zeros_like(offsets, indices.options());
    all_sizes.narrow(0, 0, std::min(sizes.numel(), all_sizes.numel()))
        .copy_(sizes.narrow(0, 0, std::min(sizes.numel(), all_sizes.numel())));
    s = {output, all_bags, all_sizes, mode == kMaxima ? maxima : at::empty({0}, indices.options())};
  }

  // For half-precision inputs GPUs keep means and deviations in single precision, the CPU only if the weight has single
  // precision.
  static at::Tensor kept(const c10::IValue& statistic, const at::Tensor& input, const at::Tensor& weight) {
    return statistic.toTensor().to(weight.defined() ? weight.scalar_type() : input.scalar_type());
  }

  // (grad_out, input, normalized_shape, mean, rstd, weight?, bias?, output_mask) -> (grad_input, grad_weight,
  // grad_bias)
  static void layer_norm_backward(Stack& s, uint64_t) {
    const at::Tensor input = s[1].toTensor(), weight = tensor_or_none(s[5]);
    auto [of_input, of_weight, of_bias] = at::native_layer_norm_backward(
        s[0].toTensor(), input, s[2].toIntVector(), kept(s[3], input, weight), kept(s[4], input, weight), weight,
        tensor_or_none(s[6]), mask<3>(s[7]));
    s = {of_input, of_weight, of_bias};
  }

  // (grad_out, input, mean, rstd, weight?, N, C, HxW, group, output_mask) -> (grad_input, grad_weight, grad_bias)
  static void group_norm_backward(Stack& s, uint64_t) {
    const at::Tensor input = s[1].toTensor(), weight = tensor_or_none(s[4]);
    auto [of_input, of_weight, of_bias] = at::native_group_norm_backward(
        s[0].toTensor(), input, kept(s[2], input, weight), kept(s[3], input, weight), weight, s[5].toInt(),
        s[6].toInt(), s[7].toInt(), s[8].toInt(), mask<3>(s[9]));
    s = {of_input, of_weight, of_bias};
  }

  template <size_t size>
  static std::array<bool, size> mask(const c10::IValue& value) {
    const c10::List<bool> wanted = value.toBoolList();
    std::array<bool, size> mask;
    for (size_t i = 0; i < size; i++) mask[i] = wanted.get(i);
    return mask;
  }

  // (grad_out, input, normalized_shape, rstd, weight?, output_mask) -> (grad_input, grad_weight)
  static void rms_norm_backward(Stack& s, uint64_t) {
    const at::Tensor outer = wide(s[0]), input = wide(s[1]), scale = wide(s[3]), weight = tensor_or_none(s[4]);
    std::vector<int64_t> last(s[2].toIntVector().size()), first(input.dim() - last.size());
    for (size_t i = 0; i < last.size(); i++) last[i] = -static_cast<int64_t>(i) - 1;
    for (size_t i = 0; i < first.size(); i++) first[i] = static_cast<int64_t>(i);
    const at::Tensor normed = input * scale, inner = weight.defined() ? outer * wide(weight) : outer;
    const at::Tensor of_input = scale * (inner - normed * (inner * normed).mean(last, true));
    at::Tensor of_weight;
    if (weight.defined())
      of_weight = (first.empty() ? outer * normed : (outer * normed).sum(first)).to(weight.scalar_type());
    s = {of_input.to(s[1].toTensor().scalar_type()), of_weight};
  }

  // (input, weight?, bias?, running_mean?, running_var?, training, momentum, epsilon) -> (output, mean, 1 / deviation).
  // The running statistics may be left out, and `next` is the position of the momentum. GPUs keep these statistics in
  // single precision, in inference as well.
  static void normalize_batch(Stack& s, const std::array<c10::IValue, 2>& running, bool training, size_t next) {
    const at::Tensor input = s[0].toTensor(), mean = tensor_or_none(running[0]), variance = tensor_or_none(running[1]);
    const double momentum = s[next].toDouble(), epsilon = s[next + 1].toDouble();
    // The running statistics are updated in training.
    const at::Tensor new_mean = wide_or_none(mean), new_variance = wide_or_none(variance);
    auto [output, by_mean, by_scale] = at::native_batch_norm(
        wide(input), wide_or_none(s[1]), wide_or_none(s[2]), new_mean, new_variance, training, momentum, epsilon);
    if (!training) {
      by_mean = new_mean;
      by_scale = (new_variance + epsilon).rsqrt();
    } else if (mean.defined() && !new_mean.is_same(mean)) {
      mean.copy_(new_mean);
      variance.copy_(new_variance);
    }
    s = {output.to(input.scalar_type()), by_mean, by_scale};
  }

  // (grad_out, input, weight?, running_mean?, running_var?, save_mean?, save_invstd?, train, eps, output_mask, ...) ->
  // gradients of input, weight, bias
  static void native_batch_norm_backward(Stack& s, uint64_t) {
    const at::Tensor weight = tensor_or_none(s[2]);
    auto [of_input, of_weight, of_bias] = at::native_batch_norm_backward(
        wide(s[0]), wide(s[1]), wide_or_none(s[2]), wide_or_none(s[3]), wide_or_none(s[4]), wide_or_none(s[5]),
        wide_or_none(s[6]), s[7].toBool(), s[8].toDouble(), mask<3>(s[9]));
    const at::ScalarType type = s[1].toTensor().scalar_type(),
                         of_parameters = weight.defined() ? weight.scalar_type() : at::kFloat;
    const auto as = [](const at::Tensor& tensor, at::ScalarType type) {
      return tensor.defined() ? tensor.to(type) : tensor;
    };
    s = {as(of_input, type), as(of_weight, of_parameters), as(of_bias, of_parameters)};
  }

  // (input, weight, bias?, running_mean?, running_var?, training, momentum, epsilon) -> (output, mean, 1 / deviation,
  // reserve)
  static void batch_norm(Stack& s, uint64_t) {
    auto [output, mean, scale] = at::native_batch_norm(
        s[0].toTensor(), tensor_or_none(s[1]), tensor_or_none(s[2]), tensor_or_none(s[3]), tensor_or_none(s[4]),
        s[5].toBool(), s[6].toDouble(), s[7].toDouble());
    s = {output, mean, scale, at::empty({0}, at::kByte)};
  }

  // (input, grad_output, weight, running_mean?, running_var?, save_mean?, save_var?, epsilon, reserve) -> gradients of
  // input, weight, bias
  static void batch_norm_backward(Stack& s, uint64_t) {
    auto [of_input, of_weight, of_bias] = at::native_batch_norm_backward(
        s[1].toTensor(), s[0].toTensor(), tensor_or_none(s[2]), tensor_or_none(s[3]), tensor_or_none(s[4]),
        tensor_or_none(s[5]), tensor_or_none(s[6]),
        /*train=*/true, s[7].toDouble(), {true, true, true});
    s = {of_input, of_weight, of_bias};
  }

  // All dimensions except the channels', the second.
  static std::vector<int64_t> others(const at::Tensor& input) {
    std::vector<int64_t> dimensions;
    for (int64_t i = 0; i < input.dim(); i++) {
      if (i != 1) dimensions.push_back(i);
    }
    return dimensions;
  }

  // One number per channel, as a tensor that broadcasts over `like`.
  static at::Tensor by_channel(const at::Tensor& values, const at::Tensor& like) {
    std::vector<int64_t> sizes(like.dim(), 1);
    sizes[1] = values.numel();
    return wide(values).reshape(sizes);
  }

  // (input, epsilon) -> (mean, 1 / deviation)
  static void batch_norm_stats(Stack& s, uint64_t) {
    const at::Tensor input = wide(s[0]);
    const at::Tensor mean = input.mean(others(input)), variance = input.var(others(input), /*unbiased=*/false);
    s = {mean, (variance + s[1].toDouble()).rsqrt()};
  }

  // (input, weight?, bias?, mean, 1 / deviation, epsilon) -> output
  static void batch_norm_elements(Stack& s, uint64_t) {
    const at::Tensor input = wide(s[0]), weight = tensor_or_none(s[1]), bias = tensor_or_none(s[2]);
    at::Tensor output = (input - by_channel(s[3].toTensor(), input)) * by_channel(s[4].toTensor(), input);
    if (weight.defined()) output = output * by_channel(weight, input);
    if (bias.defined()) output = output + by_channel(bias, input);
    s = {output.to(s[0].toTensor().scalar_type())};
  }

  // (input, means, 1 / deviations, running_mean?, running_var?, momentum, epsilon, counts) -> (mean, 1 / deviation) of
  // all ranks' inputs
  static void batch_norm_gather(Stack& s, uint64_t) {
    const at::Tensor means = wide(s[1]), scales = wide(s[2]), counts = wide(s[7]).reshape({-1, 1});
    const double momentum = s[5].toDouble(), epsilon = s[6].toDouble();
    const at::Tensor total = counts.sum(), mean = (means * counts).sum(0) / total;
    const at::Tensor variance = ((scales.pow(-2) - epsilon + (means - mean).square()) * counts).sum(0) / total;
    if (at::Tensor running = tensor_or_none(s[3]); running.defined()) running.mul_(1 - momentum).add_(mean * momentum);
    if (at::Tensor running = tensor_or_none(s[4]); running.defined())
      running.mul_(1 - momentum).add_(variance * total / (total - 1) * momentum);
    s = {mean, (variance + epsilon).rsqrt()};
  }

  // (grad_out, input, mean, 1 / deviation, weight?, three flags) -> (sum of gradients, of gradients times distances
  // from the mean, of weight, of bias)
  static void batch_norm_backward_reduce(Stack& s, uint64_t) {
    const at::Tensor outer = wide(s[0]), input = wide(s[1]);
    const at::Tensor sum = outer.sum(others(outer)),
                     products = (outer * (input - by_channel(s[2].toTensor(), input))).sum(others(outer));
    s = {sum, products, products * wide(s[3]), sum};
  }

  // (grad_out, input, mean, 1 / deviation, weight?, sum_dy, sum_dy_xmu, counts) -> grad_input
  static void batch_norm_backward_elements(Stack& s, uint64_t) {
    const at::Tensor outer = wide(s[0]), input = wide(s[1]), scale = by_channel(s[3].toTensor(), input),
                     weight = tensor_or_none(s[4]);
    const at::Tensor total = wide(s[7]).sum();
    const at::Tensor sum = by_channel(wide(s[5]) / total, input), products = by_channel(wide(s[6]) / total, input);
    at::Tensor result =
        (outer - sum - (input - by_channel(s[2].toTensor(), input)) * scale.square() * products) * scale;
    if (weight.defined()) result = result * by_channel(weight, input);
    s = {result.to(s[1].toTensor().scalar_type())};
  }

  // Recurrent networks, which cuDNN runs as one operator.
  struct Rnn {
    at::Tensor output, hidden, cell;
  };

  enum Mode : int64_t { kRelu = 0, kTanh = 1, kLstm = 2, kGru = 3 };

  // Autocast passes flattened weights, in the order of the buffer from which the GPU's library reads them.
  static std::vector<at::Tensor> matrices(
      const std::vector<at::Tensor>& weights, int64_t stride, const c10::IValue* mode) {
    const int64_t gates = mode[0].toInt() == kLstm  ? 4
                          : mode[0].toInt() == kGru ? 3
                                                    : 1,
                  rows = gates * mode[1].toInt();
    std::vector<at::Tensor> found;
    for (size_t i = 0; i < weights.size(); i++) {
      const size_t place = i % stride;
      // Weights of input and state, then their biases, then the projection of the state.
      const bool is_matrix = place < 2,
                 is_projection = !is_matrix && (stride == 3 || stride == 5) && place + 1 == static_cast<size_t>(stride);
      if (is_matrix) {
        found.push_back(weights[i].reshape({rows, -1}));
      } else {
        found.push_back(is_projection ? weights[i].reshape({mode[2].toInt(), -1}) : weights[i].reshape({-1}));
      }
    }
    return found;
  }

  // (input_gates, hidden_gates, cx, input_bias?, hidden_bias?) -> (hy, cy, gates)
  static void lstm_cell(Stack& s, uint64_t) {
    const at::ScalarType type = s[0].toTensor().scalar_type();
    const auto gates = gates_of(s, 3).chunk(4, 1);
    const at::Tensor in = gates[0].sigmoid(), forget = gates[1].sigmoid(), cell = gates[2].tanh(),
                     out = gates[3].sigmoid();
    const at::Tensor cy = forget * wide(s[2]) + in * cell;
    s = {(out * cy.tanh()).to(type), cy.to(type), at::cat({in, forget, cell, out}, 1).to(type)};
  }

  // (grad_hy?, grad_cy?, cx, cy, gates, has_bias) -> (grad_gates, grad_cx, grad_bias)
  static void lstm_cell_backward(Stack& s, uint64_t) {
    const at::ScalarType type = s[4].toTensor().scalar_type();
    const auto gates = wide(s[4]).chunk(4, 1);
    const at::Tensor in = gates[0], forget = gates[1], cell = gates[2], out = gates[3], end = wide(s[3]).tanh();
    const auto or_zeros = [&](const c10::IValue& value) {
      return tensor_or_none(value).defined() ? wide(value) : at::zeros_like(end);
    };
    const at::Tensor of_hidden = or_zeros(s[0]), of_cell = or_zeros(s[1]);
    const at::Tensor inner = of_hidden * out * (1 - end * end) + of_cell;
    const at::Tensor of_gates = at::cat(
        {inner * cell * (1 - in) * in, inner * wide(s[2]) * (1 - forget) * forget, inner * in * (1 - cell * cell),
         of_hidden * end * (1 - out) * out},
        1);
    s = {of_gates.to(type), (inner * forget).to(type), s[5].toBool() ? of_gates.sum(0).to(type) : at::Tensor()};
  }

  // (input_gates, hidden_gates, hx, input_bias?, hidden_bias?) -> (hy, gates with the state)
  static void gru_cell(Stack& s, uint64_t) {
    const at::ScalarType type = s[0].toTensor().scalar_type();
    const at::Tensor state = wide(s[2]);
    const auto of_input = biased(s[0], s[3]).chunk(3, 1), of_state = biased(s[1], s[4]).chunk(3, 1);
    const at::Tensor reset = (of_input[0] + of_state[0]).sigmoid(), update = (of_input[1] + of_state[1]).sigmoid();
    const at::Tensor fresh = (of_input[2] + reset * of_state[2]).tanh();
    s = {(fresh + update * (state - fresh)).to(type), at::cat({reset, update, fresh, state, of_state[2]}, 1).to(type)};
  }

  // (grad_hy, gates with the state, has_bias) -> (grad_input_gates, grad_hidden_gates, grad_hx, grad_input_bias,
  // grad_hidden_bias)
  static void gru_cell_backward(Stack& s, uint64_t) {
    const at::ScalarType type = s[1].toTensor().scalar_type();
    const at::Tensor outer = wide(s[0]);
    const auto kept = wide(s[1]).chunk(5, 1);
    const at::Tensor reset = kept[0], update = kept[1], fresh = kept[2], state = kept[3], of_state = kept[4];
    const at::Tensor of_fresh = outer * (1 - update) * (1 - fresh * fresh),
                     of_update = outer * (state - fresh) * (1 - update) * update;
    const at::Tensor of_reset = of_fresh * of_state * (1 - reset) * reset;
    const at::Tensor of_input = at::cat({of_reset, of_update, of_fresh}, 1),
                     of_hidden = at::cat({of_reset, of_update, of_fresh * reset}, 1);
    const bool biases = s[2].toBool();
    s = {
        of_input.to(type), of_hidden.to(type), (outer * update).to(type),
        biases ? of_input.sum(0).to(type) : at::Tensor(), biases ? of_hidden.sum(0).to(type) : at::Tensor()};
  }

  static at::Tensor biased(const c10::IValue& gates, const c10::IValue& bias) {
    return tensor_or_none(bias).defined() ? wide(gates) + wide(bias) : wide(gates);
  }

  // Gates of a cell from its input and its state, with the biases that begin at this argument.
  static at::Tensor gates_of(const Stack& s, size_t biases) {
    return biased(s[0], s[biases]) + biased(s[1], s[biases + 1]);
  }

  // Runs the network of `_cudnn_rnn`, whose arguments begin at `mode`.
  static Rnn network(
      const at::Tensor& input, const std::vector<at::Tensor>& as_given, int64_t stride, const at::Tensor& hidden,
      const at::Tensor& cell, const c10::IValue* mode, uint64_t seed) {
    const int64_t layers = mode[3].toInt();
    const bool batch_first = mode[4].toBool(), train = mode[6].toBool(), bidirectional = mode[7].toBool(),
               biases = stride == 4 || stride == 5;
    const double dropout = mode[5].toDouble();
    const std::vector<at::Tensor> weights = matrices(as_given, stride, mode);
    Drawing drawing(seed);
    if (const auto sizes = mode[8].toIntVector(); !sizes.empty()) {
      const at::Tensor packed = at::tensor(sizes, at::kLong);
      if (mode[0].toInt() == kLstm) {
        auto [output, h, c] =
            at::lstm(input, packed, {hidden, cell}, weights, biases, layers, dropout, train, bidirectional);
        return {output, h, c};
      }
      const auto run = [&](auto&& function) {
        auto [output, h] = function(input, packed, hidden, weights, biases, layers, dropout, train, bidirectional);
        return Rnn{output, h, at::Tensor()};
      };
      switch (mode[0].toInt()) {
        case kGru: return run([](auto&&... arguments) { return at::gru(arguments...); });
        case kRelu: return run([](auto&&... arguments) { return at::rnn_relu(arguments...); });
        default: return run([](auto&&... arguments) { return at::rnn_tanh(arguments...); });
      }
    }
    switch (mode[0].toInt()) {
      case kLstm: {
        auto [output, h, c] =
            at::lstm(input, {hidden, cell}, weights, biases, layers, dropout, train, bidirectional, batch_first);
        return {output, h, c};
      }
      case kGru: {
        auto [output, h] = at::gru(input, hidden, weights, biases, layers, dropout, train, bidirectional, batch_first);
        return {output, h, at::Tensor()};
      }
      default: {
        const bool relu = mode[0].toInt() == kRelu;
        auto [output, h] =
            relu ? at::rnn_relu(input, hidden, weights, biases, layers, dropout, train, bidirectional, batch_first)
                 : at::rnn_tanh(input, hidden, weights, biases, layers, dropout, train, bidirectional, batch_first);
        return {output, h, at::Tensor()};
      }
    }
  }

 public:
  // Seeds the CPU's generator while the object lives.
  class Drawing {
   public:
    explicit Drawing(uint64_t seed) : generator_(at::detail::getDefaultCPUGenerator()), state_(generator_.get_state()) {
      generator_.set_current_seed(seed);
    }
    ~Drawing() { generator_.set_state(state_); }

   private:
    at::Generator generator_;
    at::Tensor state_;
  };

 private:
  static std::vector<at::Tensor> list(const c10::IValue& value) {
    std::vector<at::Tensor> tensors;
    for (const at::Tensor& tensor : value.toTensorList()) tensors.push_back(tensor);
    return tensors;
  }

  // (input, weight[], stride, buffer?, hx, cx?, mode, ...) -> (output, hy, cy, reserve, buffer)
  static void rnn(Stack& s, uint64_t seed) {
    const Rnn result =
        network(s[0].toTensor(), list(s[1]), s[2].toInt(), s[4].toTensor(), tensor_or_none(s[5]), &s[6], seed);
    // The seed is returned as the reserve, so that the backward pass draws the same numbers.
    const at::Tensor reserve = at::full({1}, static_cast<int64_t>(seed), at::kLong).view(at::kByte);
    s = {result.output, result.hidden, result.cell.defined() ? result.cell : at::empty({0}), reserve, at::Tensor()};
  }

  // (input, weight[], stride, buffer, hx, cx?, output, grad_output?, grad_hy?, grad_cy?, mode, ..., dropout_state?,
  // reserve, mask)
  // -> gradients of input, hx, cx and the weights: through the network, computed again.
  static void rnn_backward(Stack& s, uint64_t) {
    const at::Tensor reserve = s[20].toTensor();
    const uint64_t seed = reserve.numel() >= 8
                              ? static_cast<uint64_t>(reserve.slice(0, 0, 8).clone().view(at::kLong).item<int64_t>())
                              : 0;
    const c10::impl::LocalDispatchKeySet now = c10::impl::tls_local_dispatch_key_set();
    const c10::impl::ForceDispatchKeyGuard with_autograd(
        now.included_, now.excluded_ - c10::autograd_dispatch_keyset_with_ADInplaceOrView);
    const at::AutoGradMode on(true);
    const auto leaf = [](const at::Tensor& tensor) {
      return tensor.defined() ? tensor.detach().clone().requires_grad_(true) : tensor;
    };
    std::vector<at::Tensor> weights,
        inputs = {leaf(s[0].toTensor()), leaf(s[4].toTensor()), leaf(tensor_or_none(s[5]))};
    for (const at::Tensor& weight : list(s[1])) weights.push_back(leaf(weight));
    const Rnn result = network(inputs[0], weights, s[2].toInt(), inputs[1], inputs[2], &s[10], seed);
    std::vector<at::Tensor> outputs, outer;
    const at::Tensor results[] = {result.output, result.hidden, result.cell};
    for (int i = 0; i < 3; i++) {
      const at::Tensor gradient = tensor_or_none(s[7 + i]);
      if (!gradient.defined() || !results[i].defined()) continue;
      outputs.push_back(results[i]);
      outer.push_back(gradient);
    }
    std::vector<at::Tensor> wanted;
    for (const at::Tensor& input : inputs) {
      if (input.defined()) wanted.push_back(input);
    }
    wanted.insert(wanted.end(), weights.begin(), weights.end());
    const auto gradients = torch::autograd::grad(
        outputs, wanted, outer, /*retain_graph=*/false, /*create_graph=*/false, /*allow_unused=*/true);
    size_t next = 0;
    Stack out;
    for (const at::Tensor& input : inputs) out.emplace_back(input.defined() ? gradients[next++] : at::Tensor());
    c10::List<at::Tensor> of_weights;
    while (next < gradients.size()) of_weights.push_back(gradients[next++]);
    out.emplace_back(std::move(of_weights));
    s = std::move(out);
  }
};

}  // namespace uniference
