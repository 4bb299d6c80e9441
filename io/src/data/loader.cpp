// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/io/data/loader.hpp"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <exception>
#include <set>
#include <system_error>
#include <thread>

#include "apex/core/error.hpp"

namespace apex::io {
namespace {

using Clock = std::chrono::steady_clock;

/// The calling thread takes no signals while this lives; threads started meanwhile never do.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

std::chrono::milliseconds read_delay_of(const LoaderOptions& options) {
  const char* text = std::getenv("APEX_READ_DELAY_MS");
  if (options.read_delay.count() > 0 || !text) return options.read_delay;
  char* end = nullptr;
  const long value = std::strtol(text, &end, 10);
  if (end == text || *end != '\0' || value < 0)
    fail(Kind::argument, concat("APEX_READ_DELAY_MS is '", text, "', must be a whole number of milliseconds"));
  return std::chrono::milliseconds(value);
}

/// Whether the sample itself is at fault, rather than the file system or the program.
bool is_bad_sample(const Error& error) {
  return (error.kind() == Kind::data || error.kind() == Kind::damaged) && error.domain() != Domain::system;
}

/// What became of a row.
enum class Row : std::uint8_t { good, stands_in, left_out };

/// A batch in the making. Rows are handed out in order; whoever holds rows writes them without a lock.
struct Slot {
  std::int64_t epoch = 0, step = 0;
  SampleSlice slice;
  Tensor images, labels, ids;
  std::uint8_t* pixels = nullptr;
  std::size_t picture_bytes = 0;
  bool prepared = false;
  std::int64_t handed_out = 0, finished = 0;  // rows
  std::int64_t failed_row = -1;
  std::vector<Row> kinds;
  std::exception_ptr failure;
  std::atomic<bool> dropped{false};  // nobody waits for it any more

  std::int64_t rows() const { return static_cast<std::int64_t>(slice.ids.size()); }
  bool complete() const { return prepared && finished == rows(); }
};

}  // namespace

std::optional<BadSample> parse_bad_sample(std::string_view text) noexcept {
  if (text == "error") return BadSample::error;
  if (text == "skip") return BadSample::skip;
  if (text == "black") return BadSample::black;
  return std::nullopt;
}

int default_workers() noexcept {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  const int cpus = sched_getaffinity(0, sizeof mask, &mask) == 0
                       ? CPU_COUNT(&mask)
                       : static_cast<int>(std::thread::hardware_concurrency());
  return std::max(cpus - 1, 1);
}

struct Loader::Impl {
  std::shared_ptr<const Dataset> dataset;
  Transform transform;
  Sampler sampler;
  LoaderOptions options;

  mutable std::mutex mutex;
  std::condition_variable changed;  // of anything below
  bool stopping = false;
  bool started = false;
  std::deque<std::shared_ptr<Slot>> slots;     // in the order of delivery, the first is next
  std::int64_t next_epoch = 0, next_step = 0;  // of the slot made next
  std::int64_t epoch = 0, step = 0;            // of the batch delivered next
  std::exception_ptr failure;
  std::set<std::int64_t> named;  // bad samples that were logged
  LoaderStats stats;
  std::vector<std::jthread> threads;  // last: ends before what it uses

  Impl(std::shared_ptr<const Dataset> data, Transform how, Sampler which, const LoaderOptions& wanted)
      : dataset(std::move(data)), transform(std::move(how)), sampler(std::move(which)), options(wanted) {}

  void check();
  void start_threads();
  void stop();
  void work();
  std::shared_ptr<Slot> make_slot();
  std::shared_ptr<Slot> slot_with_work(std::unique_lock<std::mutex>& lock);
  Tensor make(const Dims& sizes, DType dtype, MemoryFormat format) const;
  void prepare(Slot& slot) const;
  void fill(Slot& slot, std::int64_t begin, std::int64_t end);
  void fill_row(Slot& slot, std::int64_t row);
  std::int64_t load_by_policy(Slot& slot, std::int64_t row, std::uint8_t* out);
  ImagePart load_with_retries(const Slot& slot, std::int64_t id);
  void move_left_out_to_the_end(Slot& slot) const;
  void note_bad_sample(std::int64_t id, const Error& error);
  bool sleep(const Slot& slot, std::chrono::milliseconds time);
  void drop_slots();
  std::shared_ptr<Slot> take_front(std::unique_lock<std::mutex>& lock);
};

void Loader::Impl::check() {
  if (!dataset) fail(Kind::argument, "Loader: no data set");
  if (sampler.options().size != dataset->size())
    fail(Kind::argument,
         concat("Loader: the sampler is for ", sampler.options().size, " samples, the data set has ", dataset->size()));
  if (options.workers < -1 || options.workers > 4096)
    fail(Kind::argument, concat("Loader: workers is ", options.workers, ", takes 0 to 4096, or -1 for the default"));
  if (options.prefetch < 1)
    fail(Kind::argument, concat("Loader: prefetch is ", options.prefetch, ", must be at least 1"));
  if (options.retries < 0)
    fail(Kind::argument, concat("Loader: retries is ", options.retries, ", must not be negative"));
  if (options.workers == -1) options.workers = default_workers();
  options.read_delay = read_delay_of(options);
}

void Loader::Impl::start_threads() {
  const SignalsBlocked blocked;
  for (int i = 0; i < options.workers; ++i) {
    try {
      threads.emplace_back([this] { work(); });
    } catch (const std::system_error& error) {
      stop();
      fail(Kind::exhausted, concat("cannot start reader thread ", i + 1, " of ", options.workers, ": ", error.what(),
                                   "; use fewer workers"));
    }
  }
}

void Loader::Impl::stop() {
  {
    const std::lock_guard lock(mutex);
    stopping = true;
    drop_slots();
  }
  changed.notify_all();
  threads.clear();
}

void Loader::Impl::drop_slots() {
  for (const auto& slot : slots) slot->dropped = true;
  slots.clear();
}

/// Under the lock: the next batch's slot, still to be prepared.
std::shared_ptr<Slot> Loader::Impl::make_slot() {
  auto slot = std::make_shared<Slot>();
  slot->epoch = next_epoch;
  slot->step = next_step;
  if (++next_step == sampler.steps_per_epoch() && options.look_ahead) {
    next_step = 0;
    ++next_epoch;
  }
  slots.push_back(slot);
  return slot;
}

Tensor Loader::Impl::make(const Dims& sizes, DType dtype, MemoryFormat format) const {
  if (!options.memory) return empty(sizes, dtype, kCpu, format);
  const auto bytes = static_cast<std::size_t>(element_count(sizes)) * size_of(dtype);
  return Tensor::from_storage(options.memory(bytes), dtype, sizes, strides_for(sizes, format));
}

/// Sets up ids and tensors. What goes wrong is kept in the slot, which then has no rows, for next() to throw.
void Loader::Impl::prepare(Slot& slot) const {
  try {
    slot.slice = sampler.slice(slot.epoch, slot.step);
    const Dims sizes{slot.rows(), dataset->channels(), transform.height(), transform.width()};
    slot.images = make(sizes, DType::u8, MemoryFormat::channels_last);
    slot.labels = make({slot.rows()}, DType::i64, MemoryFormat::contiguous);
    slot.ids = from_values<std::int64_t>({slot.rows()}, std::span<const std::int64_t>(slot.slice.ids));
    slot.kinds.assign(static_cast<std::size_t>(slot.rows()), Row::good);
    slot.pixels = slot.images.data<std::uint8_t>();
    slot.picture_bytes = static_cast<std::size_t>(dataset->channels()) * transform.height() * transform.width();
  } catch (...) {
    slot.failure = std::current_exception();
    slot.slice.ids.clear();
  }
}

/// Under the lock: the earliest slot with rows to hand out, made if there is room; null when there is nothing to do.
std::shared_ptr<Slot> Loader::Impl::slot_with_work(std::unique_lock<std::mutex>& lock) {
  for (const auto& slot : slots)
    if (slot->prepared && slot->handed_out < slot->rows()) return slot;
  const bool room = static_cast<int>(slots.size()) < options.prefetch;
  if (!started || !room || next_step >= sampler.steps_per_epoch()) return nullptr;
  const auto slot = make_slot();
  lock.unlock();
  prepare(*slot);
  lock.lock();
  slot->prepared = true;
  changed.notify_all();
  return slot;
}

void Loader::Impl::work() {
  std::unique_lock lock(mutex);
  while (!stopping) {
    const auto slot = slot_with_work(lock);
    if (!slot) {
      changed.wait(lock);
      continue;
    }
    if (slot->handed_out == slot->rows()) continue;  // it could not be prepared
    // A few portions a worker: the threads finish a batch together, and the lock is seldom taken.
    const std::int64_t portion = std::max<std::int64_t>(slot->rows() / (4 * std::int64_t{options.workers}), 1);
    const std::int64_t begin = slot->handed_out, end = std::min(begin + portion, slot->rows());
    slot->handed_out = end;
    lock.unlock();
    fill(*slot, begin, end);
    lock.lock();
    slot->finished += end - begin;
    if (slot->complete()) changed.notify_all();
  }
}

bool Loader::Impl::sleep(const Slot& slot, std::chrono::milliseconds time) {
  std::unique_lock lock(mutex);
  return !changed.wait_for(lock, time, [&] { return stopping || slot.dropped; });
}

void Loader::Impl::fill(Slot& slot, std::int64_t begin, std::int64_t end) {
  if (begin == 0 && options.read_delay.count() > 0) sleep(slot, options.read_delay);
  for (std::int64_t row = begin; row < end && !slot.dropped; ++row) {
    try {
      fill_row(slot, row);
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (slot.failed_row >= 0 && slot.failed_row < row) continue;
      slot.failed_row = row;
      slot.failure = std::current_exception();
    }
  }
}

void Loader::Impl::fill_row(Slot& slot, std::int64_t row) {
  std::uint8_t* out = slot.pixels + static_cast<std::size_t>(row) * slot.picture_bytes;
  std::int64_t label = 0;
  if (slot.slice.ids[static_cast<std::size_t>(row)] < 0)
    std::memset(out, 0, slot.picture_bytes);
  else
    label = load_by_policy(slot, row, out);
  slot.labels.data<std::int64_t>()[row] = label;
}

/// Writes the picture that stands for the sample of `row`; gives its label.
std::int64_t Loader::Impl::load_by_policy(Slot& slot, std::int64_t row, std::uint8_t* out) {
  constexpr std::int64_t kMostSkipped = 1000;
  const std::int64_t n = dataset->size(), id = slot.slice.ids[static_cast<std::size_t>(row)];
  Row& kind = slot.kinds[static_cast<std::size_t>(row)];
  for (std::int64_t tries = 0; tries < std::min(n, kMostSkipped); ++tries) {
    const std::int64_t now = (id + tries) % n;
    try {
      const ImagePart image = load_with_retries(slot, now);
      if (image.pixels.channels != dataset->channels())
        fail(Kind::state, concat(dataset->sample_name(now), " was loaded with ", image.pixels.channels,
                                 " channels instead of ", dataset->channels()));
      transform.apply(image.view(), slot.epoch, now, out);
      return dataset->label(now);
    } catch (const Error& error) {
      if (options.bad_sample == BadSample::error || !is_bad_sample(error)) throw;
      note_bad_sample(now, error);
    }
    kind = Row::stands_in;
    if (options.bad_sample == BadSample::black) {
      std::memset(out, 0, slot.picture_bytes);
      return dataset->label(id);
    }
    if (!sampler.options().drop_last) {
      kind = Row::left_out;
      return 0;
    }
  }
  fail(Kind::data, concat("no good sample among the ", std::min(n, kMostSkipped), " from ", dataset->sample_name(id),
                          " on: the data set is damaged"));
}

/// Rows that do not count become padding; the others move up.
void Loader::Impl::move_left_out_to_the_end(Slot& slot) const {
  const auto left_out = std::count(slot.kinds.begin(), slot.kinds.end(), Row::left_out);
  if (left_out == 0) return;
  auto* ids = slot.ids.data<std::int64_t>();
  auto* labels = slot.labels.data<std::int64_t>();
  const auto pixels_of = [&](std::int64_t row) {
    return slot.pixels + static_cast<std::size_t>(row) * slot.picture_bytes;
  };
  std::int64_t to = 0;
  for (std::int64_t row = 0; row < slot.slice.valid; ++row) {
    if (slot.kinds[static_cast<std::size_t>(row)] == Row::left_out) continue;
    if (to != row) std::memcpy(pixels_of(to), pixels_of(row), slot.picture_bytes);
    ids[to] = ids[row];
    labels[to] = labels[row];
    ++to;
  }
  for (std::int64_t row = to; row < slot.slice.valid; ++row) {
    std::memset(pixels_of(row), 0, slot.picture_bytes);
    ids[row] = -1;
    labels[row] = 0;
  }
  slot.slice.valid = to;
}

ImagePart Loader::Impl::load_with_retries(const Slot& slot, std::int64_t id) {
  const auto choose = [&](int width, int height) { return transform.needed(width, height, slot.epoch, id); };
  auto delay = options.retry_delay;
  for (int tries = 1;; ++tries) {
    try {
      return dataset->load_part(id, choose);
    } catch (const Error& error) {
      if (error.domain() != Domain::system || error.kind() != Kind::data) throw;
      if (tries > options.retries)
        throw Error(error.kind(), error.domain(), error.code(), concat(error.what(), " (tried ", tries, " times)"));
    }
    {
      const std::lock_guard lock(mutex);
      ++stats.retries;
    }
    if (!sleep(slot, delay)) fail(Kind::state, "reading was stopped");  // nobody waits for it: the text is never seen
    delay *= 2;
  }
}

void Loader::Impl::note_bad_sample(std::int64_t id, const Error& error) {
  constexpr std::size_t kMostNamed = 20;
  const std::lock_guard lock(mutex);
  ++stats.bad_samples;
  if (named.size() == kMostNamed || !named.insert(id).second) return;
  log_warning(concat("bad sample ", options.bad_sample == BadSample::skip ? "skipped" : "made black", " (",
                     named.size(), " so far): ", error.what(),
                     named.size() == kMostNamed ? "; further ones are counted, but not named" : ""));
}

/// The complete slot at the front, taken out; made here and now when there are no workers.
std::shared_ptr<Slot> Loader::Impl::take_front(std::unique_lock<std::mutex>& lock) {
  if (options.workers == 0) {
    const auto slot = make_slot();
    slots.clear();
    lock.unlock();
    prepare(*slot);
    fill(*slot, 0, slot->rows());
    lock.lock();
    return slot;
  }
  changed.wait(lock, [&] { return !slots.empty() && slots.front()->complete(); });
  auto slot = std::move(slots.front());
  slots.pop_front();
  changed.notify_all();
  return slot;
}

Loader::Loader(std::shared_ptr<const Dataset> dataset, Transform transform, Sampler sampler,
               const LoaderOptions& options)
    : impl_(std::make_unique<Impl>(std::move(dataset), std::move(transform), std::move(sampler), options)) {
  impl_->check();
  impl_->start_threads();
}

Loader::~Loader() { impl_->stop(); }

void Loader::start(std::int64_t epoch, std::int64_t step) {
  auto& s = *impl_;
  if (epoch < 0 || step < 0 || step > steps_per_epoch())
    fail(Kind::argument, concat("Loader: cannot start at epoch ", epoch, ", step ", step, ": an epoch has ",
                                steps_per_epoch(), " steps"));
  {
    const std::lock_guard lock(s.mutex);
    const bool prepared = !s.slots.empty() && s.slots.front()->epoch == epoch && s.slots.front()->step == step;
    if (!prepared) {
      s.drop_slots();
      s.next_epoch = epoch;
      s.next_step = step;
    }
    s.epoch = epoch;
    s.step = step;
    s.failure = nullptr;
    s.started = true;
  }
  s.changed.notify_all();
}

std::optional<Batch> Loader::next() {
  auto& s = *impl_;
  std::unique_lock lock(s.mutex);
  if (!s.started) fail(Kind::state, "Loader: next() before start()");
  if (s.failure) std::rethrow_exception(s.failure);
  if (s.step == steps_per_epoch()) return std::nullopt;
  const auto begin = Clock::now();
  const auto slot = s.take_front(lock);
  const double waited = std::chrono::duration<double>(Clock::now() - begin).count();
  s.stats.wait_seconds += waited;
  if (slot->failure) {
    s.failure = slot->failure;
    std::rethrow_exception(s.failure);
  }
  s.move_left_out_to_the_end(*slot);
  ++s.stats.batches;
  ++s.step;
  const auto& which = s.sampler.options();
  return Batch{.images = std::move(slot->images),
               .labels = std::move(slot->labels),
               .ids = std::move(slot->ids),
               .valid = slot->slice.valid,
               .epoch = slot->epoch,
               .step = slot->step,
               .first = which.rank,
               .stride = which.world,
               .bad = std::count_if(slot->kinds.begin(), slot->kinds.end(), [](Row kind) { return kind != Row::good; }),
               .wait_seconds = waited};
}

std::int64_t Loader::steps_per_epoch() const noexcept { return impl_->sampler.steps_per_epoch(); }
const Dataset& Loader::dataset() const noexcept { return *impl_->dataset; }
const Sampler& Loader::sampler() const noexcept { return impl_->sampler; }
int Loader::workers() const noexcept { return impl_->options.workers; }

LoaderStats Loader::stats() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->stats;
}

}  // namespace apex::io
