// Owns the values of attention whose kernels only GPUs have: scores, probabilities and their gradients by matrix products of the CPU.
#pragma once

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <cmath>
#include <optional>

#include "definitions.h"

namespace uniference {

class Attention {
 public:
  // Computes an operator of attention whose arguments are on the stack, tensors of the CPU; its results take their place. False: it is another
  // operator. `seed`: what dropout draws from; the forward pass hands it on in place of the GPU's own state.
  static bool computes(const std::string& name, torch::jit::Stack& stack, uint64_t seed) {
    if (name == "aten::_scaled_dot_product_flash_attention") {
      const Attention attention(stack[0], stack[1], stack[2], {}, stack[3], stack[4], stack[6], seed);
      const at::Tensor none = at::empty({0});
      stack = {attention.output(), attention.log_sums(), none, none, stack[0].toTensor().size(2), stack[1].toTensor().size(2), seed_as_tensor(seed, {2}),
               none, none};
    } else if (name == "aten::_scaled_dot_product_efficient_attention") {
      const Attention attention(stack[0], stack[1], stack[2], stack[3].toOptional<at::Tensor>(), stack[5], stack[6], stack[7], seed);
      // The kernel works on 32 queries at a time, and says sums where they are asked for.
      const int64_t queries = stack[0].toTensor().size(2);
      const at::Tensor sums = at::constant_pad_nd(attention.log_sums(), {0, (queries + 31) / 32 * 32 - queries});
      stack = {attention.output(), stack[4].toBool() ? sums : sums.narrow(2, 0, 0), seed_as_tensor(seed, {}), at::zeros({}, at::kLong)};
    } else if (name == "aten::_scaled_dot_product_cudnn_attention") {
      const Attention attention(stack[0], stack[1], stack[2], stack[3].toOptional<at::Tensor>(), stack[5], stack[6], stack[8], seed);
      const at::Tensor none = at::empty({0});
      stack = {attention.output(), attention.log_sums().unsqueeze(-1), none, none, stack[0].toTensor().size(2), stack[1].toTensor().size(2),
               seed_as_tensor(seed, {}), at::zeros({}, at::kLong), none};
    } else if (name == "aten::_scaled_dot_product_flash_attention_backward") {
      const Attention attention(stack[1], stack[2], stack[3], {}, stack[10], stack[11], stack[14], seed_of(stack[12]));
      stack = attention.gradients(stack[0].toTensor(), false);
    } else if (name == "aten::_scaled_dot_product_efficient_attention_backward") {
      const Attention attention(stack[1], stack[2], stack[3], stack[4].toOptional<at::Tensor>(), stack[9], stack[11], stack[12], seed_of(stack[7]));
      stack = attention.gradients(stack[0].toTensor(), true);
    } else if (name == "aten::_scaled_dot_product_cudnn_attention_backward") {
      const Attention attention(stack[1], stack[2], stack[3], stack[8].toOptional<at::Tensor>(), stack[13], stack[14], stack[15], seed_of(stack[6]));
      stack = attention.gradients(stack[0].toTensor(), false);
    } else {
      return false;
    }
    return true;
  }

 private:
  // Of queries (batch, heads, queries, width), and keys and values of as many heads, or fewer that several heads of queries share.
  Attention(const c10::IValue& query, const c10::IValue& key, const c10::IValue& value, const std::optional<at::Tensor>& bias, const c10::IValue& dropout,
            const c10::IValue& causal, const c10::IValue& scale, uint64_t seed)
      : type_(query.toTensor().scalar_type()), key_heads_(key.toTensor().size(1)), query_(wide(query.toTensor())) {
    const int64_t shared = query_.size(1) / key_heads_;
    key_ = wide(key.toTensor()).repeat_interleave(shared, 1);
    value_ = wide(value.toTensor()).repeat_interleave(shared, 1);
    scale_ = scale.isNone() ? 1 / std::sqrt(static_cast<double>(query_.size(3))) : scale.toDouble();
    at::Tensor scores = at::matmul(query_, key_.transpose(2, 3)) * scale_;
    if (bias && bias->defined()) {
      bias_ = *bias;
      scores = scores + wide(*bias);
    }
    if (causal.toBool()) {
      const auto above = at::ones({query_.size(2), key_.size(2)}, at::kBool).triu(1);
      scores = scores.masked_fill(above, -std::numeric_limits<double>::infinity());
    }
    log_sums_ = scores.logsumexp(-1);
    probabilities_ = at::softmax(scores, -1).nan_to_num(0);
    const double dropped = dropout.toDouble();
    kept_ = at::ones({}, query_.options());
    if (dropped > 0) {
      auto generator = at::detail::createCPUGenerator(seed);
      kept_ = at::empty_like(probabilities_).bernoulli_(1 - dropped, generator) / (1 - dropped);
    }
  }

  at::Tensor output() const { return at::matmul(probabilities_ * kept_, value_).to(type_); }

  // Of single precision, as on a GPU: (batch, heads, queries).
  at::Tensor log_sums() const { return log_sums_.to(at::kFloat); }

  // Of query, key and value; with `of_bias` of the bias, too.
  torch::jit::Stack gradients(const at::Tensor& of_output, bool of_bias) const {
    const at::Tensor outer = wide(of_output);
    const at::Tensor of_value = at::matmul((probabilities_ * kept_).transpose(2, 3), outer);
    const at::Tensor of_probabilities = at::matmul(outer, value_.transpose(2, 3)) * kept_;
    const at::Tensor of_scores = probabilities_ * (of_probabilities - (of_probabilities * probabilities_).sum(-1, true));
    const at::Tensor of_query = at::matmul(of_scores, key_) * scale_;
    const at::Tensor of_key = at::matmul(of_scores.transpose(2, 3), query_) * scale_;
    torch::jit::Stack results = {of_query.to(type_), summed(of_key), summed(of_value)};
    if (of_bias) results.push_back(bias_.defined() ? of_scores.sum_to_size(bias_.sizes()).to(bias_.scalar_type()) : at::Tensor());
    return results;
  }

  // Over the heads of queries that share a head.
  at::Tensor summed(const at::Tensor& gradient) const {
    const auto sizes = gradient.sizes();
    return gradient.reshape({sizes[0], key_heads_, sizes[1] / key_heads_, sizes[2], sizes[3]}).sum(2).to(type_);
  }

  static at::Tensor wide(const at::Tensor& tensor) { return tensor.scalar_type() == at::kDouble ? tensor : tensor.to(at::kFloat); }

  static at::Tensor seed_as_tensor(uint64_t seed, at::IntArrayRef sizes) {
    return at::full(sizes, static_cast<int64_t>(seed), at::TensorOptions().dtype(at::kLong));
  }

  static uint64_t seed_of(const c10::IValue& state) {
    const at::Tensor& tensor = state.toTensor();
    return tensor.defined() && tensor.numel() > 0 ? static_cast<uint64_t>(tensor.flatten()[0].to(at::kLong).item<int64_t>()) : 0;
  }

  c10::ScalarType type_;
  int64_t key_heads_;
  double scale_;
  at::Tensor query_, key_, value_, bias_, log_sums_, probabilities_, kept_;
};

}  // namespace uniference
