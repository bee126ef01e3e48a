// Owns the arithmetic of collectives on simulated GPUs, by torch's kernels. Types are numbers of `c10::ScalarType`,
// reductions of `c10d::ReduceOp::RedOpType`.
#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <array>
#include <cmath>
#include <limits>

#include "own_work.h"

namespace uniference {

class Reductions {
 public:
  // Combines elements with others, in place.
  static void combine(uint32_t operation, uint32_t dtype, uintptr_t into, uintptr_t from, uint64_t bytes) {
    const Inside ours;
    at::Tensor result = elements(dtype, into, bytes);
    const at::Tensor other = elements(dtype, from, bytes);
    if (c10::isFloat8Type(result.scalar_type())) {
      at::Tensor wide = result.to(at::kFloat);
      apply(operation, wide, other.to(at::kFloat));
      narrow(wide, result);
    } else if (is_unsigned(dtype) && is_extremum(operation)) {
      // In the order of signed numbers if the upper bit is turned round.
      result.bitwise_xor_(lowest(result));
      apply(operation, result, other.bitwise_xor(lowest(other)));
      result.bitwise_xor_(lowest(result));
    } else {
      apply(operation, result, other);
    }
  }

  // Multiplies elements by a factor, or the part that one member in so many has; whole numbers are rounded towards
  // zero.
  static void scale(uint32_t dtype, uintptr_t at, uint64_t bytes, double factor) {
    const Inside ours;
    const auto divided = [&](auto* numbers) {
      const auto by = static_cast<uint64_t>(std::llround(1 / factor));
      for (uint64_t i = 0; i < bytes / sizeof(*numbers); i++) numbers[i] /= by;
    };
    const bool divides = std::abs(factor) < 1 && factor != 0;
    if (divides && is(dtype, at::kUInt32)) return divided(reinterpret_cast<uint32_t*>(at));
    if (divides && is(dtype, at::kUInt64)) return divided(reinterpret_cast<uint64_t*>(at));
    at::Tensor values = elements(dtype, at, bytes);
    if (c10::isFloat8Type(values.scalar_type())) {
      narrow(values.to(at::kFloat).mul_(factor), values);
    } else if (values.is_floating_point()) {
      values.mul_(factor);
    } else if (divides) {
      // The number of members may exceed the range of the type.
      values.copy_(values.to(at::kLong).div_(static_cast<int64_t>(std::llround(1 / factor)), "trunc"));
    } else {
      values.mul_(static_cast<int64_t>(factor));
    }
  }

 private:
  // Disables autograd and the capture.
  struct Inside {
    c10::impl::ExcludeDispatchKeyGuard below{
        c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::DispatchKeySet(c10::DispatchKey::Fake)};
    OwnWork ours;
  };

  static bool is_extremum(uint32_t operation) {
    return operation == c10d::ReduceOp::MIN || operation == c10d::ReduceOp::MAX;
  }

  static void apply(uint32_t operation, at::Tensor& result, const at::Tensor& other) {
    switch (operation) {
      case c10d::ReduceOp::SUM: result.add_(other); break;
      case c10d::ReduceOp::PRODUCT: result.mul_(other); break;
      case c10d::ReduceOp::MAX: at::maximum_out(result, result, other); break;
      default: at::minimum_out(result, result, other); break;
    }
  }

  // Converts to 8 bits: too large values become the largest one.
  static void narrow(const at::Tensor& wide, at::Tensor& to) {
    const double most = to.scalar_type() == at::kFloat8_e5m2 ? 57344 : 448;
    to.copy_(wide.clamp(-most, most));
  }

  static bool is(uint32_t dtype, c10::ScalarType type) { return dtype == static_cast<uint32_t>(type); }
  static bool is_unsigned(uint32_t dtype) { return is(dtype, at::kUInt32) || is(dtype, at::kUInt64); }

  static at::Scalar lowest(const at::Tensor& of) {
    return of.scalar_type() == at::kInt ? at::Scalar(std::numeric_limits<int32_t>::min())
                                        : at::Scalar(std::numeric_limits<int64_t>::min());
  }

  // Unsigned integers of 32 and 64 bits have no kernels; sums and products of the signed ones are the same bits.
  static at::Tensor elements(uint32_t dtype, uintptr_t at, uint64_t bytes) {
    const c10::ScalarType type = is(dtype, at::kUInt32)   ? at::kInt
                                 : is(dtype, at::kUInt64) ? at::kLong
                                                          : static_cast<c10::ScalarType>(dtype);
    return at::from_blob(
        reinterpret_cast<void*>(at), {static_cast<int64_t>(bytes / c10::elementSize(type))},
        at::TensorOptions().dtype(type));
  }
};

}  // namespace uniference
