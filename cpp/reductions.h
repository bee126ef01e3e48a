// Owns the arithmetic of collectives on simulated GPUs, by torch's kernels. Types and operations have NCCL's numbers.
#pragma once

#include <ATen/ATen.h>

#include <array>

#include "own_work.h"

namespace uniference {

class Reductions {
 public:
  // Combines elements with others, in place.
  static void combine(uint32_t operation, uint32_t dtype, void* into, const void* from, uint64_t bytes) {
    const Inside ours;
    at::Tensor result = elements(dtype, into, bytes);
    const at::Tensor other = elements(dtype, const_cast<void*>(from), bytes);
    switch (operation) {
      case 0: result.add_(other); break;
      case 1: result.mul_(other); break;
      case 2: at::maximum_out(result, result, other); break;
      default: at::minimum_out(result, result, other); break;
    }
  }

  // Multiplies elements by a factor; whole numbers are rounded towards zero.
  static void scale(uint32_t dtype, void* at, uint64_t bytes, double factor) {
    const Inside ours;
    at::Tensor values = elements(dtype, at, bytes);
    if (values.is_floating_point()) {
      values.mul_(factor);
    } else {
      values.div_(1 / factor, "trunc");
    }
  }

 private:
  // Nothing of it is written down, or recorded by autograd.
  struct Inside {
    c10::impl::ExcludeDispatchKeyGuard below{c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::DispatchKeySet(c10::DispatchKey::Fake)};
    OwnWork ours;
  };

  static at::Tensor elements(uint32_t dtype, void* at, uint64_t bytes) {
    static constexpr std::array<c10::ScalarType, 12> kTypes = {
        at::kChar, at::kByte,  at::kInt,    at::kUInt32,   at::kLong,          at::kUInt64,
        at::kHalf, at::kFloat, at::kDouble, at::kBFloat16, at::kFloat8_e4m3fn, at::kFloat8_e5m2};
    const c10::ScalarType type = kTypes[dtype];
    return at::from_blob(at, {static_cast<int64_t>(bytes / c10::elementSize(type))}, at::TensorOptions().dtype(type));
  }
};

}  // namespace uniference
