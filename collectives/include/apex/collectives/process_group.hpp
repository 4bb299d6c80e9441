// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <mpi.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <source_location>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "apex/collectives/statistics.hpp"
#include "apex/collectives/work.hpp"
#include "apex/core/error.hpp"
#include "apex/core/tensor.hpp"

namespace apex::dist {

class ProcessGroup;

namespace detail {
struct Group;
class Channel;
Channel& channel_of(const ProcessGroup& group);
}  // namespace detail

/// `avg` is the sum times 1/size, rounded in the tensor's dtype after the sum (on CUDA as NCCL's ncclAvg does it).
enum class ReduceOp : unsigned char { sum, avg, product, min, max };

/// Who talks. Each purpose of a group has a communicator of its own, so clients that issue collectives on their own
/// schedule never meet. Within one channel every rank must issue the same collectives in the same order.
enum class Purpose : unsigned char { user, ddp, batch_norm, spatial, checkpoint };
inline constexpr int kPurposes = 5;

const char* to_string(ReduceOp op) noexcept;
const char* to_string(Purpose purpose) noexcept;

/// What names a collective in reports: words of the caller's, the same on all ranks ("bucket 3", "layer4.bn1"), and the
/// place it was issued.
struct Label {
  std::string_view text{};
  std::source_location where = std::source_location::current();
  Label(std::source_location at = std::source_location::current()) : where(at) {}           // NOLINT: that is its use
  Label(std::string_view words, std::source_location at = std::source_location::current())  // NOLINT
      : text(words), where(at) {}
  Label(const char* words, std::source_location at = std::source_location::current())  // NOLINT
      : text(words), where(at) {}
  Label(const std::string& words, std::source_location at = std::source_location::current())  // NOLINT
      : text(words), where(at) {}
};

/// Some of the job's ranks and a channel between them: a shared handle, cheap to copy.
///
/// Everything marked collective must be called by all ranks of the group, in the same order. Communicators (one per
/// purpose) are made with the group, never later, and are released when the Session ends: freeing one is collective
/// too, and handles go away at different moments on different ranks. A handle that outlives the Session can still be
/// copied and destroyed; anything else throws Kind::state.
///
/// Tensors of a collective: on the CPU, where MPI carries them, or on the Session's CUDA device, where NCCL does; same
/// device kind, dtype and sizes on all ranks (the caller's promise;
/// where APEX_DIST_DEBUG=1 a difference, in the label too, is an error of the Work, on every rank). Wrong tensors throw
/// Kind::argument, before anything is sent. Zero elements are fine. MPI's counts are no limit: large tensors travel in
/// pieces.
///
/// Each asynchronous function returns at once; `.wait()` makes it the blocking form (on CUDA it blocks the stream, not
/// the thread). Host values (numbers, bytes, agree) always travel by MPI and block the thread.
class ProcessGroup {
 public:
  /// The null group; modules read it as "the world".
  ProcessGroup() = default;

  /// All ranks of the job. @throws Kind::state without a Session
  static ProcessGroup world();

  explicit operator bool() const noexcept { return group_ != nullptr; }
  friend bool operator==(const ProcessGroup&, const ProcessGroup&) = default;

  /// Ranks with the same color form a group, ordered by key, then rank. A negative color gives the null group.
  /// Collective.
  ProcessGroup split(int color, int key = 0, std::string label = {}) const;
  /// The listed ranks (of this group), in that order; null for the others. All ranks pass the same list. Collective.
  /// @throws Kind::argument for an empty list, a rank out of range or named twice
  ProcessGroup subgroup(std::span<const int> ranks, std::string label = {}) const;
  /// Consecutive ranks, group_size at a time. Collective.
  /// @throws Kind::argument unless group_size divides size()
  ProcessGroup partition(int group_size, std::string label = {}) const;
  /// The ranks that share this node's memory. Collective.
  ProcessGroup node_local() const;
  /// The same ranks with communicators of their own. Collective.
  ProcessGroup dup(std::string label) const;

  /// The same group, talking on another channel. Not collective.
  ProcessGroup channel(Purpose purpose) const;
  Purpose purpose() const;
  const std::string& label() const;

  /// The same channel, with collectives of CUDA tensors on the caller's current stream: nothing runs beside them, and
  /// no stream waits for another, which spares some microseconds a call. For callers that wait at once. wait() on the
  /// stream of issue does nothing; on another it makes that one wait. Calls here and without in_stream() may be mixed,
  /// and keep their order. The stream must live until the Session ends (those of apex do). No difference on the CPU and
  /// where ranks share a GPU. Not collective.
  ProcessGroup in_stream() const;
  bool is_in_stream() const noexcept { return in_stream_; }

  int rank() const;
  int size() const;
  /// World rank of a rank of this group.
  int world_rank(int group_rank) const;
  /// This channel's communicator, errors returned, owned by the Session. For libraries that take one (MPI-IO, HDF5):
  /// their traffic must be ordered with what is issued here.
  MPI_Comm mpi_comm() const;

  /// Combines tensor over all ranks, element by element, in place. Needs a dense tensor, strides in any order but the
  /// same on all ranks. 16-bit types are added in f32 and rounded at each step, as NCCL does; bool takes min and max
  /// only, integers everything but avg. min and max of a NaN are unspecified.
  /// In a deterministic Session the sum runs over the ranks in order, in f32 (f64 for f64), rounded once; on CUDA in
  /// NCCL's ring order (SessionOptions::deterministic). Collective.
  [[nodiscard]] Work all_reduce(const Tensor& tensor, ReduceOp op = ReduceOp::sum, Label label = {}) const;
  /// Gives every rank root's values. Dense as above. Collective.
  [[nodiscard]] Work broadcast(const Tensor& tensor, int root, Label label = {}) const;
  /// out = the inputs of all ranks one after the other. Both contiguous, out.numel() == size() * in.numel(); `in` may
  /// be this rank's part of `out`, else they must not overlap. Collective.
  [[nodiscard]] Work all_gather(const Tensor& out, const Tensor& in, Label label = {}) const;
  /// out = part rank() of the reduction of the inputs. Both contiguous, in.numel() == size() * out.numel(), no overlap.
  /// Dtypes and order as all_reduce. Collective.
  [[nodiscard]] Work reduce_scatter(const Tensor& out, const Tensor& in, ReduceOp op = ReduceOp::sum,
                                    Label label = {}) const;
  /// Returns when every rank has entered. Collective, blocking.
  void barrier(Label label = {}) const;

  /// Blocking forms for host values. Collective.
  double all_reduce(double value, ReduceOp op, Label label = {}) const;
  std::int64_t all_reduce(std::int64_t value, ReduceOp op, Label label = {}) const;
  void all_reduce(std::span<double> values, ReduceOp op, Label label = {}) const;
  void all_reduce(std::span<std::int64_t> values, ReduceOp op, Label label = {}) const;
  /// Root's bytes, of any length.
  std::string broadcast(std::string bytes, int root, Label label = {}) const;
  /// Every rank's bytes, of any lengths, by rank.
  std::vector<std::string> all_gather(std::string_view bytes, Label label = {}) const;

  /// Throws on every rank if any rank says not ok: the message of the lowest such rank, which is named, under its kind.
  /// `message` is not looked at where ok. Collective.
  void agree(bool ok, std::string_view message, Kind kind = Kind::argument, Label label = {}) const;
  /// Runs body; an apex::Error out of it on any rank is thrown on every rank, as agree does. The body itself must not
  /// wait for other ranks after its first possible failure. Collective.
  void together(const std::function<void()>& body, Label label = {}) const;

  /// Totals of this channel.
  Statistics statistics() const;

 private:
  friend class Session;
  friend detail::Channel& detail::channel_of(const ProcessGroup& group);
  ProcessGroup(std::shared_ptr<detail::Group> group, Purpose purpose, bool in_stream = false)
      : group_(std::move(group)), purpose_(purpose), in_stream_(in_stream) {}
  detail::Channel& open_channel() const;
  const detail::Group& group() const;
  ProcessGroup make(int color, int key, std::string label) const;
  ProcessGroup adopt(MPI_Comm comm, std::string label) const;

  std::shared_ptr<detail::Group> group_;
  Purpose purpose_ = Purpose::user;
  bool in_stream_ = false;
};

/// Whether every rank still has a batch: for loops over shards of different lengths. Collective, blocking.
bool all_have_next(bool has_next, const ProcessGroup& group = {});

}  // namespace apex::dist
