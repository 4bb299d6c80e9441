// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>

#include "apex/core/tensor.hpp"

struct DLManagedTensor;
struct DLManagedTensorVersioned;

/// Zero-copy exchange of tensors with other frameworks, both ways. f64 f32 f16 bf16 i64 i32 u8 travel as what they are;
/// strides as they are; the CPU and CUDA devices. No gradient is recorded across the border.
///
/// **Streams.** DLPack's structures say nothing of the order of work on a GPU, so both functions take the stream of the
/// other side (a cudaStream_t; null is the legacy default stream, which PyTorch uses unless told otherwise):
///   export   what the other side queues there from now on comes after what is queued on our current stream so far;
///            our memory is handed out again only after what it has queued there by then
///   import   what is queued on our current stream from now on comes after what is queued there so far; the deleter is
///            called once what we have queued is ordered before what the other side queues there afterwards
/// That stream must live as long as the tensor is shared. Without one, nothing is ordered: right on the CPU, where it
/// must be left out, and where the caller has synchronised.
namespace apex {

/// Hands a tensor to another framework (DLPack 0.x). The consumer calls the result's deleter once; the storage lives
/// until then. `boolean` travels as uint8.
/// @throws Kind::argument for an undefined tensor, or a stream for one on the CPU
DLManagedTensor* to_dlpack(const Tensor& tensor, std::optional<void*> consumer_stream = std::nullopt);

/// Takes over a tensor of another framework and calls its deleter when the last handle goes. Strides may be null
/// (row-major). On an error nothing is taken over: the caller still owns `managed`.
/// @throws Kind::unsupported for lanes != 1, a type or a device this build has not;
///         Kind::argument for null, rank > 8, negative sizes or strides, elements at an address that their type cannot
///         have, or a stream for a tensor on the CPU
Tensor from_dlpack(DLManagedTensor* managed, std::optional<void*> producer_stream = std::nullopt);

/// Whether the two functions below work: the library was built with a header of DLPack 1.x.
bool has_versioned_dlpack() noexcept;

/// The same with the structure of DLPack 1.x (a capsule "dltensor_versioned"); `boolean` travels as itself.
/// @throws Kind::unsupported in a build with a header of DLPack 0.x; the rest as to_dlpack
DLManagedTensorVersioned* to_dlpack_versioned(const Tensor& tensor,
                                              std::optional<void*> consumer_stream = std::nullopt);

/// The same with the structure of DLPack 1.x.
/// @throws Kind::unsupported in a build with a header of DLPack 0.x, for another major version and for a tensor that
///         its owner marks read-only (ours can be written); the rest as from_dlpack
Tensor from_dlpack_versioned(DLManagedTensorVersioned* managed, std::optional<void*> producer_stream = std::nullopt);

}  // namespace apex
