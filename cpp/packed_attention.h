// Owns values of attention over packed sequences, and over a paged KV cache: each sequence is computed by itself.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "attention.h"

namespace uniference {

class PackedAttention {
 public:
  // Each function computes the operator of its name. The arguments are CPU tensors on the stack, and the results
  // replace them. `seed`: as in `Attention`.
  static void flash(torch::jit::Stack& stack, uint64_t seed) {
    auto [output, sums] = flash_from(stack, 0, seed);
    const at::Tensor none = at::empty({0});
    stack = {output, sums, Attention::seed_as_tensor(seed, {2}), none, none};
  }

  // Writes the output to the first argument.
  static void flash_to(torch::jit::Stack& stack, uint64_t seed) {
    auto [output, sums] = flash_from(stack, 1, seed);
    stack[0].toTensor().copy_(output);
    stack = {sums};
  }

  static void flash_backward(torch::jit::Stack& stack, uint64_t) {
    // (grad_out, query, key, value, out, logsumexp, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, is_causal,
    // rng_state, unused, *, scale?, window_size_left?, window_size_right?)
    PackedAttention packed({stack[1], stack[2], stack[3]}, stack[6], stack[7]);
    packed.sees(stack[11], stack[15], stack[16], /*from_the_last=*/true);
    packed.numbers(stack[10], stack[14], Attention::seed_of(stack[12]));
    stack = packed.backward(stack[0].toTensor());
  }

  static void efficient(torch::jit::Stack& stack, uint64_t seed) {
    // (query, key, value, bias?, cu_seqlens_q?, cu_seqlens_k?, max_seqlen_q?, max_seqlen_k?, dropout_p,
    // custom_mask_type, compute_log_sumexp, *, scale?, seqlen_k?, window_size?)
    PackedAttention packed({stack[0], stack[1], stack[2]}, stack[4], stack[5], stack[12]);
    packed.sees_efficient(stack[9], stack[13]);
    packed.set_bias(stack[3]);
    packed.numbers(stack[8], stack[11], seed);
    auto [output, sums] = packed.forward();
    // In an unpacked batch all sequences have the tensors' length, and these arguments are ignored.
    const bool is_packed = tensor_or_none(stack[4]).defined();
    const int64_t queries = is_packed ? stack[6].toInt() : tokens_of(stack[0]),
                  keys = is_packed ? stack[7].toInt() : tokens_of(stack[1]);
    stack = {
        output,
        packed.by_blocks(sums, stack[10].toBool() ? queries : 0),
        Attention::seed_as_tensor(seed, {}),
        at::zeros({}, at::kLong),
        queries,
        keys};
  }

  static void efficient_backward(torch::jit::Stack& stack, uint64_t) {
    // (grad_out, query, key, value, bias?, out, cu_seqlens_q?, cu_seqlens_k?, max_seqlen_q, max_seqlen_k, logsumexp,
    // dropout_p, philox_seed, philox_offset, custom_mask_type, bias_requires_grad, *, scale?, num_splits_key?,
    // window_size?, shared_storage_dqdkdv)
    PackedAttention packed({stack[1], stack[2], stack[3]}, stack[6], stack[7]);
    packed.sees_efficient(stack[14], stack[18]);
    packed.set_bias(stack[4]);
    packed.numbers(stack[11], stack[16], Attention::seed_of(stack[12]));
    if (stack[15].toBool() && packed.bias_.defined()) packed.of_bias_ = at::zeros_like(packed.bias_);
    auto gradients = packed.backward(stack[0].toTensor());
    gradients.push_back(packed.of_bias_);
    stack = gradients;
  }

  static void cudnn(torch::jit::Stack& stack, uint64_t seed) {
    // (query, key, value, attn_bias?, cum_seq_q?, cum_seq_k?, max_q, max_k, compute_log_sumexp, dropout_p, is_causal,
    // return_debug_mask, *, scale?, seqused_k?, block_table?)
    const bool is_packed = tensor_or_none(stack[4]).defined();
    PackedAttention packed(heads_last(stack, 0, is_packed), stack[4], stack[5], stack[13], stack[14]);
    packed.sees(stack[10], {}, {}, /*from_the_last=*/tensor_or_none(stack[13]).defined());
    packed.set_bias(stack[3]);
    packed.numbers(stack[9], stack[12], seed);
    auto [output, sums] = packed.forward();
    if (!is_packed) output = output.transpose(1, 2);
    sums = is_packed ? packed.by_heads(sums) : packed.by_batches(sums).unsqueeze(-1);
    const at::Tensor none = at::empty({0});
    if (!stack[8].toBool()) sums = none;
    stack = {output,
             sums,
             stack[4],
             stack[5],
             stack[6],
             stack[7],
             Attention::seed_as_tensor(seed, {}),
             at::zeros({}, at::kLong),
             none};
  }

  // Writes the output to the first argument.
  static void cudnn_to(torch::jit::Stack& stack, uint64_t seed) {
    // (out, query, key, value, cum_seq_q, cum_seq_k?, max_q, max_k, is_causal, *, scale?, seqused_k?, block_table?)
    PackedAttention packed(heads_last(stack, 1, /*is_packed=*/true), stack[4], stack[5], stack[10], stack[11]);
    packed.sees(stack[8], {}, {}, /*from_the_last=*/tensor_or_none(stack[10]).defined());
    packed.numbers(0.0, stack[9], seed);
    auto [output, sums] = packed.forward();
    stack[0].toTensor().copy_(output);
    stack = {packed.by_heads(sums)};
  }

  static void cudnn_backward(torch::jit::Stack& stack, uint64_t) {
    // (grad_out, query, key, value, out, logsumexp, philox_seed, philox_offset, attn_bias, cum_seq_q, cum_seq_k, max_q,
    // max_k, dropout_p, is_causal, *, scale?)
    const bool is_packed = tensor_or_none(stack[9]).defined();
    PackedAttention packed(heads_last(stack, 1, is_packed), stack[9], stack[10]);
    packed.sees(stack[14], {}, {}, /*from_the_last=*/false);
    packed.set_bias(stack[8]);
    packed.numbers(stack[13], stack[15], Attention::seed_of(stack[6]));
    stack = packed.backward(heads_last(stack, 0, is_packed).query.toTensor());
    if (is_packed) return;
    for (auto& gradient : stack) gradient = gradient.toTensor().transpose(1, 2);
  }

 private:
  struct Inputs {
    // (tokens, heads, width), or (batch, tokens, heads, width); keys and values may also be (pages, tokens, heads,
    // width).
    c10::IValue query, key, value;
  };

  // (query, key, value, cum_seq_q?, cum_seq_k?, max_q, max_k, dropout_p, is_causal, return_debug_mask, *, scale?,
  // window_size_left?, window_size_right?, seqused_k?, alibi_slopes?, block_table?, num_splits?), from that argument
  // on. PyTorch's build refuses slopes.
  static std::tuple<at::Tensor, at::Tensor> flash_from(const torch::jit::Stack& stack, size_t at, uint64_t seed) {
    const bool is_packed = tensor_or_none(stack[at + 3]).defined();
    // Sequences of an unpacked batch use all of their keys.
    const c10::IValue used = is_packed ? stack[at + 13] : c10::IValue();
    PackedAttention packed(
        {stack[at], stack[at + 1], stack[at + 2]}, stack[at + 3], stack[at + 4], used, stack[at + 15]);
    packed.sees(stack[at + 8], stack[at + 11], stack[at + 12], /*from_the_last=*/true);
    packed.numbers(stack[at + 7], stack[at + 10], seed);
    auto [output, sums] = packed.forward();
    return {output, is_packed ? packed.by_heads(sums) : packed.by_batches(sums)};
  }

  // Position and number of a sequence's queries, and of its keys and values unless they lie in pages.
  struct Sequence {
    int64_t query, queries, key, keys;
  };

  // `queries` and `keys` are cumulative sequence lengths, with one number for each sequence's start and one for the end
  // of the last; without them each row of the batch is one sequence. `used` limits the keys of each sequence, and
  // `pages` has a row of page numbers for each.
  PackedAttention(
      const Inputs& inputs, const c10::IValue& queries, const c10::IValue& keys, const c10::IValue& used = {},
      const c10::IValue& pages = {})
      : query_(inputs.query.toTensor()),
        key_(inputs.key.toTensor()),
        value_(inputs.value.toTensor()),
        pages_(tensor_or_none(pages)) {
    const auto of_queries = bounds(tensor_or_none(queries), query_), of_keys = bounds(tensor_or_none(keys), key_);
    const at::Tensor lengths = tensor_or_none(used).defined() ? tensor_or_none(used).to(at::kLong) : at::Tensor();
    for (size_t i = 0; i + 1 < of_queries.size(); ++i) {
      Sequence sequence{of_queries[i], of_queries[i + 1] - of_queries[i], 0, 0};
      if (i + 1 < of_keys.size()) sequence.key = of_keys[i], sequence.keys = of_keys[i + 1] - of_keys[i];
      const int64_t room = pages_.defined() ? pages_.size(1) * key_.size(1) : sequence.keys;
      if (lengths.defined())
        sequence.keys = std::clamp<int64_t>(lengths[static_cast<int64_t>(i)].item<int64_t>(), 0, room);
      sequences_.push_back(sequence);
    }
  }

  // Cumulative lengths, clipped to the number of tokens, because the numbers are the program's.
  static std::vector<int64_t> bounds(const at::Tensor& cumulative, const at::Tensor& tokens) {
    std::vector<int64_t> bounds;
    if (!cumulative.defined()) {
      for (int64_t row = 0; row <= tokens.size(0); ++row) bounds.push_back(row * tokens.size(1));
      return bounds;
    }
    const at::Tensor numbers = cumulative.to(at::kLong).contiguous();
    const int64_t last = flat(tokens).size(0);
    for (int64_t i = 0; i < numbers.numel(); ++i) {
      bounds.push_back(std::clamp(numbers.const_data_ptr<int64_t>()[i], bounds.empty() ? 0 : bounds.back(), last));
    }
    return bounds;
  }

  // `from_the_last`: the mask aligns the last query with the last key, as always in FlashAttention, and in cuDNN with a
  // cache; otherwise the first with the first.
  void sees(const c10::IValue& causal, const c10::IValue& left, const c10::IValue& right, bool from_the_last) {
    from_the_last_ = from_the_last;
    left_ = window(left);
    right_ = causal.toBool() ? std::optional<int64_t>(0) : window(right);
  }

  // `kind`: 1 aligns the mask to the first query and key, 2 to the last. The window size counts the key at its end.
  void sees_efficient(const c10::IValue& kind, const c10::IValue& size) {
    from_the_last_ = kind.toInt() == 2;
    if (kind.toInt() != 0) right_ = 0;
    if (!size.isNone() && size.toInt() > 0) left_ = size.toInt() - 1;
  }

  // The bias of the scores, with the same dimensions: (batch, heads, queries, keys).
  void set_bias(const c10::IValue& bias) {
    bias_ = tensor_or_none(bias);
    while (bias_.defined() && bias_.dim() < 4) bias_ = bias_.unsqueeze(0);
  }

  static std::optional<int64_t> window(const c10::IValue& size) {
    return size.isNone() || size.toInt() < 0 ? std::nullopt : std::optional<int64_t>(size.toInt());
  }

  void numbers(const c10::IValue& dropout, const c10::IValue& scale, uint64_t seed) {
    dropout_ = dropout, scale_ = scale, seed_ = seed;
  }

  // The output, like the queries, and logarithms of sums: (tokens, heads).
  std::tuple<at::Tensor, at::Tensor> forward() const {
    auto sizes = query_.sizes().vec();
    sizes.back() = value_.size(-1);
    const at::Tensor output = at::zeros(sizes, query_.options());
    const at::Tensor sums =
        at::full({flat(query_).size(0), query_.size(-2)}, std::numeric_limits<float>::infinity(), at::kFloat);
    for (size_t i = 0; i < sequences_.size(); ++i) {
      const auto& [query, queries, key, keys] = sequences_[i];
      if (queries == 0 || keys == 0) continue;
      const Attention attention = alone(i);
      flat(output).narrow(0, query, queries).copy_(attention.output()[0].transpose(0, 1));
      const at::Tensor log_sums = attention.log_sums()[0].transpose(0, 1);
      sums.narrow(0, query, queries)
          .copy_(log_sums.masked_fill(log_sums.isneginf(), std::numeric_limits<double>::infinity()));
    }
    return {output, sums};
  }

  // Gradients of query, key and value, and of the bias if it is requested.
  torch::jit::Stack backward(const at::Tensor& of_output) const {
    const at::Tensor of_query = zeros(query_), of_key = zeros(key_), of_value = zeros(value_);
    for (size_t i = 0; i < sequences_.size(); ++i) {
      const auto& [query, queries, key, keys] = sequences_[i];
      if (queries == 0 || keys == 0) continue;
      const at::Tensor outer = heads_first(flat(of_output).narrow(0, query, queries));
      const Attention attention = alone(i);
      const auto gradients = attention.gradients(outer);
      flat(of_query).narrow(0, query, queries).copy_(gradients[0].toTensor()[0].transpose(0, 1));
      flat(of_key).narrow(0, key, keys).copy_(gradients[1].toTensor()[0].transpose(0, 1));
      flat(of_value).narrow(0, key, keys).copy_(gradients[2].toTensor()[0].transpose(0, 1));
      if (of_bias_.defined())
        row_of(of_bias_, i).add_(attention.gradient_of_bias(outer).sum_to_size(row_of(of_bias_, i).sizes()));
    }
    return {of_query, of_key, of_value};
  }

  // Attention of one sequence: (1, heads, tokens, width).
  Attention alone(size_t number) const {
    const auto& [query, queries, key, keys] = sequences_[number];
    const at::Tensor own = heads_first(flat(query_).narrow(0, query, queries));
    // The CPU's kernel has a causal mask aligned to the first query and key.
    const bool is_simple = right_ == 0 && !left_ && !bias_.defined() && (queries == keys || !from_the_last_);
    const auto added = is_simple ? std::nullopt : mask(number, own.scalar_type());
    return Attention(
        own, heads_first(rows(key_, number)), heads_first(rows(value_, number)), added, dropout_, is_simple, scale_,
        seed_ + number, of_bias_.defined());
  }

  // Keys or values of one sequence: (tokens, heads, width).
  at::Tensor rows(const at::Tensor& tensor, size_t number) const {
    const Sequence& sequence = sequences_[number];
    if (!pages_.defined()) return flat(tensor).narrow(0, sequence.key, sequence.keys);
    const int64_t size = tensor.size(1), count = (sequence.keys + size - 1) / size;
    const at::Tensor own = pages_[static_cast<int64_t>(number)].narrow(0, 0, count).to(at::kLong);
    return flat(tensor.index_select(0, own)).narrow(0, 0, sequence.keys);
  }

  // The additive mask of the scores; none if each query sees all keys and there is no bias.
  std::optional<at::Tensor> mask(size_t number, at::ScalarType type) const {
    const auto& [query, queries, key, keys] = sequences_[number];
    std::optional<at::Tensor> mask;
    if (bias_.defined())
      mask = row_of(bias_, number)
                 .narrow(2, 0, std::min(queries, bias_.size(2)))
                 .narrow(3, 0, std::min(keys, bias_.size(3)));
    if (!left_ && !right_) return mask;
    // Offset of a key from the key at the query's own position.
    const int64_t shift = from_the_last_ ? keys - queries : 0;
    const at::Tensor ahead =
        at::arange(keys, at::kInt).unsqueeze(0) - (at::arange(queries, at::kInt) + shift).unsqueeze(1);
    at::Tensor hidden = at::zeros({queries, keys}, at::kBool);
    if (right_) hidden = hidden.logical_or(ahead > *right_);
    if (left_) hidden = hidden.logical_or(ahead < -*left_);
    const auto wide = type == at::kDouble ? at::kDouble : at::kFloat;
    const at::Tensor added =
        at::zeros({queries, keys}, wide).masked_fill(hidden, -std::numeric_limits<double>::infinity());
    return mask ? *mask + added : added;
  }

  // A sequence's part of a bias (batch or 1, heads or 1, queries, keys).
  static at::Tensor row_of(const at::Tensor& bias, size_t number) {
    return bias.narrow(0, bias.size(0) == 1 ? 0 : static_cast<int64_t>(number), 1);
  }

  // (tokens, heads) -> (heads, tokens)
  at::Tensor by_heads(const at::Tensor& sums) const { return sums.t().contiguous(); }

  // (tokens, heads) -> (batch, heads, tokens)
  at::Tensor by_batches(const at::Tensor& sums) const {
    return sums.view({query_.size(0), query_.size(1), sums.size(1)}).transpose(1, 2).contiguous();
  }

  // (tokens, heads) -> (sequences, heads, queries), with queries rounded up to a multiple of the block size of 32.
  at::Tensor by_blocks(const at::Tensor& sums, int64_t queries) const {
    const std::vector<int64_t> sizes = {
        static_cast<int64_t>(sequences_.size()), sums.size(1), (queries + 31) / 32 * 32};
    const at::Tensor blocks = at::full(sizes, std::numeric_limits<float>::infinity(), at::kFloat);
    if (queries == 0) return blocks;
    for (size_t i = 0; i < sequences_.size(); ++i) {
      const Sequence& sequence = sequences_[i];
      const int64_t count = std::min(sequence.queries, queries);
      blocks[static_cast<int64_t>(i)].narrow(1, 0, count).copy_(sums.narrow(0, sequence.query, count).t());
    }
    return blocks;
  }

  // (batch, tokens, heads, width)
  static int64_t tokens_of(const c10::IValue& value) { return value.toTensor().size(1); }

  // (tokens, heads, width) of one sequence -> (1, heads, tokens, width)
  static at::Tensor heads_first(const at::Tensor& tokens) { return tokens.transpose(0, 1).unsqueeze(0); }

  // Queries, keys and values, starting at this argument. In cuDNN's batches the heads precede the tokens, in packed
  // tensors they follow.
  static Inputs heads_last(const torch::jit::Stack& stack, size_t at, bool is_packed) {
    const auto moved = [&](size_t i) {
      return is_packed ? stack[i] : c10::IValue(stack[i].toTensor().transpose(1, 2));
    };
    return {moved(at), moved(at + 1), moved(at + 2)};
  }

  // All tokens of all rows: (tokens, heads, width).
  static at::Tensor flat(const at::Tensor& tensor) { return tensor.dim() == 3 ? tensor : tensor.flatten(0, 1); }

  // A contiguous tensor of the same size, so that `flat` returns a view.
  static at::Tensor zeros(const at::Tensor& tensor) { return at::zeros(tensor.sizes(), tensor.options()); }

  static at::Tensor tensor_or_none(const c10::IValue& value) {
    return value.isNone() ? at::Tensor() : value.toTensor();
  }

  at::Tensor query_, key_, value_, pages_, bias_, of_bias_;
  std::vector<Sequence> sequences_;
  bool from_the_last_ = false;
  // Number of visible keys before and behind a query's own position; none: all.
  std::optional<int64_t> left_, right_;
  c10::IValue dropout_, scale_;
  uint64_t seed_ = 0;
};

}  // namespace uniference
