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

struct Loaded {
  std::int64_t label = 0;
  Row kind = Row::good;
};

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
  std::vector<EncodedRow> encoded;   // one for each row; without bytes where the row is in `images`
  std::atomic<bool> dropped{false};  // nobody waits for it any more

  std::int64_t rows() const { return static_cast<std::int64_t>(slice.ids.size()); }
  bool complete() const { return prepared && finished == rows(); }
  std::uint8_t* picture(std::int64_t row) const { return pixels + static_cast<std::size_t>(row) * picture_bytes; }
};

/// Makes padding of the rows for which `is_left_out` holds; those behind move up.
template <class F>
void leave_out(Batch& batch, F&& is_left_out) {
  const std::size_t picture_bytes = batch.images.bytes() / static_cast<std::size_t>(batch.images.size(0));
  const auto picture = [&, pixels = batch.images.data<std::uint8_t>()](std::int64_t row) {
    return pixels + static_cast<std::size_t>(row) * picture_bytes;
  };
  auto* ids = batch.ids.data<std::int64_t>();
  auto* labels = batch.labels.data<std::int64_t>();
  std::vector<std::int64_t> place(static_cast<std::size_t>(batch.valid), -1);  // of each row, afterwards
  std::int64_t to = 0;
  for (std::int64_t row = 0; row < batch.valid; ++row) {
    if (is_left_out(row)) continue;
    place[static_cast<std::size_t>(row)] = to;
    if (to != row) std::memcpy(picture(to), picture(row), picture_bytes);
    ids[to] = ids[row];
    labels[to] = labels[row];
    ++to;
  }
  for (std::int64_t row = to; row < batch.valid; ++row) {
    std::memset(picture(row), 0, picture_bytes);
    ids[row] = -1;
    labels[row] = 0;
  }
  for (auto& left : batch.encoded)
    if (left.row >= 0) left.row = place[static_cast<std::size_t>(left.row)];
  batch.valid = to;
}

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
  Loaded load_by_policy(Slot& slot, std::int64_t id, std::int64_t row);
  void load(Slot& slot, std::int64_t id, std::int64_t row);
  template <class F>
  auto with_retries(const Slot& slot, F&& read);
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
    if (options.leaves_encoded) slot.encoded.resize(slot.slice.ids.size());
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
  const auto k = static_cast<std::size_t>(row);
  const std::int64_t id = slot.slice.ids[k];
  Loaded loaded;
  if (id < 0)
    std::memset(slot.picture(row), 0, slot.picture_bytes);
  else
    loaded = load_by_policy(slot, id, row);
  slot.labels.data<std::int64_t>()[row] = loaded.label;
  slot.kinds[k] = loaded.kind;
}

/// Fetches the picture that stands for sample `id`.
Loaded Loader::Impl::load_by_policy(Slot& slot, std::int64_t id, std::int64_t row) {
  constexpr std::int64_t kMostSkipped = 1000;
  const std::int64_t n = dataset->size();
  Row kind = Row::good;
  for (std::int64_t tries = 0; tries < std::min(n, kMostSkipped); ++tries) {
    const std::int64_t now = (id + tries) % n;
    try {
      load(slot, now, row);
      return {dataset->label(now), kind};
    } catch (const Error& error) {
      if (options.bad_sample == BadSample::error || !is_bad_sample(error)) throw;
      note_bad_sample(now, error);
    }
    kind = Row::stands_in;
    if (options.bad_sample == BadSample::black) {
      std::memset(slot.picture(row), 0, slot.picture_bytes);
      return {dataset->label(id), kind};
    }
    if (!sampler.options().drop_last) return {0, Row::left_out};
  }
  fail(Kind::data, concat("no good sample among the ", std::min(n, kMostSkipped), " from ", dataset->sample_name(id),
                          " on: the data set is damaged"));
}

template <class F>
auto Loader::Impl::with_retries(const Slot& slot, F&& read) {
  auto delay = options.retry_delay;
  for (int tries = 1;; ++tries) {
    try {
      return read();
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

/// Puts sample `id` into a row, as pixels or, where that is wanted, as the bytes of its file. Only the part that the
/// transform looks at is decoded.
void Loader::Impl::load(Slot& slot, std::int64_t id, std::int64_t row) {
  const ChooseBox choose = [&](int width, int height) { return transform.needed(width, height, slot.epoch, id); };
  const auto read = [&] { return dataset->load_part(id, choose); };
  ImagePart image;
  if (slot.encoded.empty()) {
    image = with_retries(slot, read);
  } else {
    auto bytes = with_retries(slot, [&] { return dataset->encoded(id); });
    const auto info = bytes ? plain_jpeg_info(*bytes) : std::nullopt;
    if (info && options.leaves_encoded(*info)) {
      slot.encoded[static_cast<std::size_t>(row)] = {
          row, id, *info, transform.place(info->width, info->height, slot.epoch, id), std::move(*bytes)};
      return;
    }
    image = bytes ? decode_image_part(*bytes, dataset->channels(), dataset->sample_name(id), choose)
                  : with_retries(slot, read);
  }
  if (image.pixels.channels != dataset->channels())
    fail(Kind::state, concat(dataset->sample_name(id), " was loaded with ", image.pixels.channels,
                             " channels instead of ", dataset->channels()));
  transform.apply(image.view(), slot.epoch, id, slot.picture(row));
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
  ++s.stats.batches;
  ++s.step;
  const auto& which = s.sampler.options();
  std::erase_if(slot->encoded, [](const EncodedRow& row) { return row.bytes.empty(); });
  const auto& kinds = slot->kinds;
  Batch batch{.images = std::move(slot->images),
              .labels = std::move(slot->labels),
              .ids = std::move(slot->ids),
              .valid = slot->slice.valid,
              .epoch = slot->epoch,
              .step = slot->step,
              .first = which.rank,
              .stride = which.world,
              .bad = std::count_if(kinds.begin(), kinds.end(), [](Row kind) { return kind != Row::good; }),
              .wait_seconds = waited,
              .encoded = std::move(slot->encoded)};
  leave_out(batch, [&](std::int64_t row) { return kinds[static_cast<std::size_t>(row)] == Row::left_out; });
  return batch;
}

void Loader::decode(Batch& batch, std::size_t k) {
  auto& s = *impl_;
  EncodedRow& encoded = batch.encoded.at(k);
  if (encoded.bytes.empty()) return;
  const std::int64_t row = encoded.row;
  const bool stood_in = encoded.id != batch.ids.data<std::int64_t>()[row];  // so it is counted already
  Slot slot;
  slot.epoch = batch.epoch;
  slot.pixels = batch.images.data<std::uint8_t>();
  slot.picture_bytes = static_cast<std::size_t>(s.dataset->channels()) * s.transform.height() * s.transform.width();
  encoded.bytes = {};
  const Loaded loaded = s.load_by_policy(slot, encoded.id, row);
  batch.labels.data<std::int64_t>()[row] = loaded.label;
  if (loaded.kind != Row::good && !stood_in) ++batch.bad;
  if (loaded.kind == Row::left_out) leave_out(batch, [row](std::int64_t other) { return other == row; });
}

bool Loader::leaves_encoded() const noexcept { return static_cast<bool>(impl_->options.leaves_encoded); }

std::int64_t Loader::steps_per_epoch() const noexcept { return impl_->sampler.steps_per_epoch(); }
const Dataset& Loader::dataset() const noexcept { return *impl_->dataset; }
const Sampler& Loader::sampler() const noexcept { return impl_->sampler; }
int Loader::workers() const noexcept { return impl_->options.workers; }

LoaderStats Loader::stats() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->stats;
}

}  // namespace apex::io
