// Owns values of attention operators that only GPUs have. If possible they are computed by the CPU's own kernel, bit
// for bit; with dropout, and for the gradient of a bias, they are computed as scores, probabilities and their gradients
// by GEMMs.
#pragma once

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/stack.h>

#include <cmath>
#include <limits>
#include <optional>

namespace uniference {

class Attention {
 public:
  // Each function computes the operator of its name. The arguments are CPU tensors on the stack, and the results
  // replace them. `seed`: seed of dropout; the forward pass returns it in place of the GPU's generator state.
  static void flash(torch::jit::Stack& stack, uint64_t seed) {
    const auto mask = from_the_last(stack[0], stack[1], stack[4]);
    const Attention attention(stack[0], stack[1], stack[2], mask, stack[3], mask ? false : stack[4], stack[6], seed);
    const at::Tensor none = at::empty({0});
    stack = {attention.output(),          attention.log_sums(),      none, none, stack[0].toTensor().size(2),
             stack[1].toTensor().size(2), seed_as_tensor(seed, {2}), none, none};
  }

  static void efficient(torch::jit::Stack& stack, uint64_t seed) {
    const Attention attention(
        stack[0], stack[1], stack[2], stack[3].toOptional<at::Tensor>(), stack[5], stack[6], stack[7], seed);
    const at::Tensor query = stack[0].toTensor();
    // The GPU's kernel works on blocks of 32 queries, and returns logarithms of sums only on request.
    const int64_t queries = stack[4].toBool() ? (query.size(2) + 31) / 32 * 32 : 0;
    const at::Tensor sums =
        at::full({query.size(0), query.size(1), queries}, std::numeric_limits<float>::infinity(), at::kFloat);
    if (queries > 0) sums.narrow(2, 0, query.size(2)).copy_(attention.log_sums());
    stack = {attention.output(), sums, seed_as_tensor(seed, {}), at::zeros({}, at::kLong)};
  }

  static void cudnn(torch::jit::Stack& stack, uint64_t seed) {
    const Attention attention(
        stack[0], stack[1], stack[2], stack[3].toOptional<at::Tensor>(), stack[5], stack[6], stack[8], seed);
    const at::Tensor none = at::empty({0});
    stack = {
        attention.output(),
        attention.log_sums().unsqueeze(-1),
        none,
        none,
        stack[0].toTensor().size(2),
        stack[1].toTensor().size(2),
        seed_as_tensor(seed, {}),
        at::zeros({}, at::kLong),
        none};
  }

  static void flash_backward(torch::jit::Stack& stack, uint64_t) {
    const auto mask = from_the_last(stack[1], stack[2], stack[11]);
    const Attention attention(
        stack[1], stack[2], stack[3], mask, stack[10], mask ? false : stack[11], stack[14], seed_of(stack[12]));
    stack = attention.gradients(stack[0].toTensor());
  }

  static void efficient_backward(torch::jit::Stack& stack, uint64_t) {
    const bool of_bias = stack[10].toBoolList().get(3);
    const Attention attention(
        stack[1], stack[2], stack[3], stack[4].toOptional<at::Tensor>(), stack[9], stack[11], stack[12],
        seed_of(stack[7]), of_bias);
    const at::Tensor outer = stack[0].toTensor();
    stack = attention.gradients(outer);
    stack.push_back(of_bias ? attention.gradient_of_bias(outer) : at::Tensor());
  }

  static void cudnn_backward(torch::jit::Stack& stack, uint64_t) {
    const Attention attention(
        stack[1], stack[2], stack[3], stack[8].toOptional<at::Tensor>(), stack[13], stack[14], stack[15],
        seed_of(stack[6]));
    stack = attention.gradients(stack[0].toTensor());
  }

  static at::Tensor seed_as_tensor(uint64_t seed, at::IntArrayRef sizes) {
    return at::full(sizes, static_cast<int64_t>(seed), at::TensorOptions().dtype(at::kLong));
  }

  static uint64_t seed_of(const c10::IValue& state) {
    const at::Tensor& tensor = state.toTensor();
    return tensor.defined() && tensor.numel() > 0
               ? static_cast<uint64_t>(tensor.flatten()[0].to(at::kLong).item<int64_t>())
               : 0;
  }

  // Queries (batch, heads, queries, width), and keys and values with as many heads, or fewer that several query heads
  // share.
  Attention(
      const c10::IValue& query, const c10::IValue& key, const c10::IValue& value, const std::optional<at::Tensor>& bias,
      const c10::IValue& dropout, const c10::IValue& causal, const c10::IValue& scale, uint64_t seed,
      bool of_bias = false)
      : type_(query.toTensor().scalar_type()),
        key_heads_(key.toTensor().size(1)),
        causal_(causal.toBool()),
        query_(rows(query.toTensor())) {
    key_ = rows(for_all_heads(key.toTensor()));
    value_ = rows(for_all_heads(value.toTensor()));
    scale_ = scale.isNone() ? 1 / std::sqrt(static_cast<double>(query_.size(3))) : scale.toDouble();
    if (bias && bias->defined()) bias_ = *bias;
    const double dropped = dropout.toDouble();
    // For a query without visible keys the CPU's kernel returns NaN, FlashAttention zeros.
    const bool all_see = !bias_.defined() || query_.size(2) <= key_.size(2);
    by_kernel_ = dropped == 0 && !of_bias && all_see && query_.size(3) == value_.size(3);
    if (by_kernel_) {
      std::tie(output_, log_sums_) =
          at::_scaled_dot_product_flash_attention_for_cpu(query_, key_, value_, 0, causal_, mask(), scale_);
    } else {
      multiply(dropped, seed);
    }
  }

  at::Tensor output() const { return output_; }

  // In single precision, as on a GPU: (batch, heads, queries).
  at::Tensor log_sums() const { return log_sums_.to(at::kFloat); }

  // Gradients of query, key and value.
  torch::jit::Stack gradients(const at::Tensor& of_output) const {
    if (by_kernel_) {
      const auto [of_query, of_key, of_value] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
          rows(of_output), query_, key_, value_, output_, log_sums_, 0, causal_, mask(), scale_);
      return {of_query, summed(of_key), summed(of_value)};
    }
    const at::Tensor of_scores = gradient_of_scores(of_output);
    const at::Tensor of_value = at::matmul((probabilities_ * kept_).transpose(2, 3), wide(of_output));
    const at::Tensor of_query = at::matmul(of_scores, wide(key_)) * scale_;
    const at::Tensor of_key = at::matmul(of_scores.transpose(2, 3), wide(query_)) * scale_;
    return {of_query.to(type_), summed(of_key), summed(of_value)};
  }

  at::Tensor gradient_of_bias(const at::Tensor& of_output) const {
    return bias_.defined() ? gradient_of_scores(of_output).sum_to_size(bias_.sizes()).to(bias_.scalar_type())
                           : at::Tensor();
  }

 private:
  // FlashAttention 2 aligns the causal mask to the end: the last query sees all keys, whether there are more keys than
  // queries or fewer.
  static std::optional<at::Tensor> from_the_last(
      const c10::IValue& query, const c10::IValue& key, const c10::IValue& causal) {
    const int64_t queries = query.toTensor().size(2), keys = key.toTensor().size(2);
    if (!causal.toBool() || queries == keys) return std::nullopt;
    const at::Tensor hidden = at::ones({queries, keys}, at::kBool).triu(keys - queries + 1);
    return at::zeros({queries, keys}, query.toTensor().options())
        .masked_fill(hidden, -std::numeric_limits<double>::infinity());
  }

  void multiply(double dropped, uint64_t seed) {
    at::Tensor scores = at::matmul(wide(query_), wide(key_).transpose(2, 3)) * scale_;
    if (bias_.defined()) scores = scores + wide(bias_);
    if (causal_) {
      const auto above = at::ones({query_.size(2), key_.size(2)}, at::kBool).triu(1);
      scores = scores.masked_fill(above, -std::numeric_limits<double>::infinity());
    }
    log_sums_ = scores.logsumexp(-1);
    probabilities_ = at::softmax(scores, -1).nan_to_num(0);
    kept_ = at::ones({}, scores.options());
    if (dropped > 0) {
      auto generator = at::detail::createCPUGenerator(seed);
      kept_ = at::empty_like(probabilities_).bernoulli_(1 - dropped, generator) / (1 - dropped);
    }
    output_ = at::matmul(probabilities_ * kept_, wide(value_)).to(type_);
  }

  at::Tensor gradient_of_scores(const at::Tensor& of_output) const {
    const at::Tensor of_probabilities = at::matmul(wide(of_output), wide(value_).transpose(2, 3)) * kept_;
    return probabilities_ * (of_probabilities - (of_probabilities * probabilities_).sum(-1, true));
  }

  // Repeats a tensor of key heads for each query head that shares them.
  at::Tensor for_all_heads(const at::Tensor& tensor) const {
    const int64_t shared = query_.size(1) / key_heads_;
    return shared == 1 ? tensor : tensor.repeat_interleave(shared, 1);
  }

  // Sums a gradient over the query heads that share a key head.
  at::Tensor summed(const at::Tensor& gradient) const {
    if (gradient.size(1) == key_heads_) return gradient.to(type_);
    const auto sizes = gradient.sizes();
    return gradient.reshape({sizes[0], key_heads_, sizes[1] / key_heads_, sizes[2], sizes[3]}).sum(2).to(type_);
  }

  std::optional<at::Tensor> mask() const { return bias_.defined() ? std::optional<at::Tensor>(bias_) : std::nullopt; }

  // A tensor with contiguous rows, as the CPU's kernel reads them.
  static at::Tensor rows(const at::Tensor& tensor) { return tensor.stride(-1) == 1 ? tensor : tensor.contiguous(); }

  static at::Tensor wide(const at::Tensor& tensor) {
    return tensor.scalar_type() == at::kDouble ? tensor : tensor.to(at::kFloat);
  }

  c10::ScalarType type_;
  int64_t key_heads_;
  bool causal_, by_kernel_;
  double scale_;
  at::Tensor query_, key_, value_, bias_, output_, log_sums_;
  // Used if the CPU's kernel cannot compute the call.
  at::Tensor probabilities_, kept_;
};

}  // namespace uniference
