// Owns the arithmetic of collectives on simulated GPUs, with torch's kernels. Types and operations have NCCL's numbers.
#pragma once

#include <ATen/ATen.h>

#include <array>
#include <cmath>
#include <limits>

#include "own_work.h"

namespace uniference {

class Reductions {
 public:
  // Combines elements with others in place.
  static void combine(uint32_t operation, uint32_t dtype, void* into, const void* from, uint64_t bytes) {
    const Inside ours;
    at::Tensor result = elements(dtype, into, bytes);
    const at::Tensor other = elements(dtype, const_cast<void*>(from), bytes);
    if (c10::isFloat8Type(result.scalar_type())) {
      at::Tensor wide = result.to(at::kFloat);
      apply(operation, wide, other.to(at::kFloat));
      narrow(wide, result);
    } else if (is_unsigned(dtype) && operation >= kMaximum) {
      // Flipping the highest bit maps unsigned order to signed order.
      result.bitwise_xor_(lowest(result));
      apply(operation, result, other.bitwise_xor(lowest(other)));
      result.bitwise_xor_(lowest(result));
    } else {
      apply(operation, result, other);
    }
  }

  // Multiplies elements by a factor; for integers it divides by 1 / factor and rounds towards zero.
  static void scale(uint32_t dtype, void* at, uint64_t bytes, double factor) {
    const Inside ours;
    const auto divided = [&](auto* numbers) {
      const auto by = static_cast<uint64_t>(std::llround(1 / factor));
      for (uint64_t i = 0; i < bytes / sizeof(*numbers); i++) numbers[i] /= by;
    };
    const bool divides = std::abs(factor) < 1 && factor != 0;
    if (divides && dtype == 3) return divided(static_cast<uint32_t*>(at));
    if (divides && dtype == 5) return divided(static_cast<uint64_t*>(at));
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

  // The torch type of an `ncclDataType_t`. Unsigned numbers of 32 and 64 bits have no kernels; sums and products of
  // signed numbers have the same bits.
  static c10::ScalarType type_of(uint32_t dtype) {
    static constexpr std::array<c10::ScalarType, 12> kTypes = {
        at::kChar, at::kByte,  at::kInt,    at::kInt,      at::kLong,          at::kLong,
        at::kHalf, at::kFloat, at::kDouble, at::kBFloat16, at::kFloat8_e4m3fn, at::kFloat8_e5m2};
    return kTypes[dtype];
  }

 private:
  // Disables autograd and the capture.
  struct Inside {
    c10::impl::ExcludeDispatchKeyGuard below{c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::DispatchKeySet(c10::DispatchKey::Fake)};
    OwnWork ours;
  };

  static constexpr uint32_t kMaximum = 2;

  static void apply(uint32_t operation, at::Tensor& result, const at::Tensor& other) {
    switch (operation) {
      case 0: result.add_(other); break;
      case 1: result.mul_(other); break;
      case kMaximum: at::maximum_out(result, result, other); break;
      default: at::minimum_out(result, result, other); break;
    }
  }

  // Converts to 8 bits: too large values become the largest one.
  static void narrow(const at::Tensor& wide, at::Tensor& to) {
    const double most = to.scalar_type() == at::kFloat8_e5m2 ? 57344 : 448;
    to.copy_(wide.clamp(-most, most));
  }

  static bool is_unsigned(uint32_t dtype) { return dtype == 3 || dtype == 5; }

  static at::Scalar lowest(const at::Tensor& of) {
    return of.scalar_type() == at::kInt ? at::Scalar(std::numeric_limits<int32_t>::min()) : at::Scalar(std::numeric_limits<int64_t>::min());
  }

  static at::Tensor elements(uint32_t dtype, void* at, uint64_t bytes) {
    const c10::ScalarType type = type_of(dtype);
    return at::from_blob(at, {static_cast<int64_t>(bytes / c10::elementSize(type))}, at::TensorOptions().dtype(type));
  }
};

}  // namespace uniference
