// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "watchdog.hpp"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <iomanip>
#include <utility>
#include <vector>

#include "apex/collectives/session.hpp"

namespace apex::dist::detail {
namespace {

constexpr int kPrintState = 17;        // the only tag on the watchdog's communicator
constexpr double kGraceSeconds = 1.0;  // for the peers' reports, before the job ends

std::string seconds_text(double seconds) {
  std::ostringstream out;
  out << std::fixed << std::setprecision(seconds < 10 ? 3 : 1) << seconds << " s";
  return out.str();
}

/// One write, so that the blocks of several ranks do not mix.
void print_block(const std::string& text) {
  std::size_t done = 0;
  while (done < text.size()) {
    const auto n = ::write(STDERR_FILENO, text.data() + done, text.size() - done);
    if (n <= 0) return;
    done += static_cast<std::size_t>(n);
  }
}

std::string_view base_name(std::string_view path) { return path.substr(path.find_last_of('/') + 1); }

}  // namespace

std::thread quiet_thread(std::function<void()> body) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread(std::move(body));  // inherits the mask
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread;
}

std::string to_string(const Description& d) {
  std::ostringstream out;
  out << d.op << (*d.detail ? " " : "") << d.detail << " #" << d.sequence << " on " << d.channel;
  if (!d.label.empty()) out << " \"" << d.label << '"';
  out << ", " << d.dtype << " x " << d.count;
  if (d.root >= 0) out << " from rank " << d.root;
  out << " (" << base_name(d.where.file_name()) << ':' << d.where.line() << ')';
  return out.str();
}

Watchdog::Watchdog(double timeout_s, std::string host)
    : timeout_s_(timeout_s), tick_s_(std::clamp(timeout_s / 20, 0.01, 0.1)), host_(std::move(host)) {
  thread_ = quiet_thread([this] { run(); });
}

Watchdog::~Watchdog() {
  {
    const std::scoped_lock lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void Watchdog::connect(MPI_Comm comm, int rank, int size, std::mutex& progress) {
  const std::scoped_lock lock(link_mutex_);
  progress_ = &progress;
  comm_ = comm;
  rank_ = rank;
  size_ = size;
}

void Watchdog::disconnect() {
  const std::scoped_lock lock(link_mutex_);
  progress_ = nullptr;
  comm_ = MPI_COMM_NULL;
}

/// Time this process ran, as far as ticks can tell: a gap of many ticks was a suspension (or a machine that is so
/// overloaded that nobody could have answered).
double Watchdog::now() const {
  const double gap = std::chrono::duration<double>(Clock::now() - last_tick_).count();
  return awake_ + std::min(gap, std::max(1.0, 10 * tick_s_));
}

void Watchdog::count_time() {
  awake_ = now();
  last_tick_ = Clock::now();
}

Watchdog::Id Watchdog::watch(std::string what, double seconds) {
  const std::scoped_lock lock(mutex_);
  const Id id = next_id_++;
  watched_[id] = {std::move(what), now(), seconds > 0 ? seconds : timeout_s_, kNoRecord};
  return id;
}

Watchdog::Id Watchdog::watch(const Description& description) {
  const std::scoped_lock lock(mutex_);
  const Id id = next_id_++;
  const double start = now();
  watched_[id] = {{}, start, timeout_s_, recorded_};
  records_[recorded_++ % kRecords] = {description, State::in_flight, start, 0};
  return id;
}

void Watchdog::done(Id id) noexcept {
  const std::scoped_lock lock(mutex_);
  const auto at = watched_.find(id);
  if (at == watched_.end()) return;
  const std::uint64_t number = at->second.record;
  if (number != kNoRecord && number + kRecords >= recorded_) {
    Record& record = records_[number % kRecords];
    record.state = State::complete;
    record.seconds = now() - record.started;
  }
  watched_.erase(at);
}

void Watchdog::run() {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    wake_.wait_for(lock, std::chrono::duration<double>(tick_s_));
    count_time();
    const auto late = std::find_if(watched_.begin(), watched_.end(), [&](const auto& entry) {
      return awake_ - entry.second.started > entry.second.limit;
    });
    if (late != watched_.end()) {
      const Watched copy = late->second;
      lock.unlock();
      fire(copy);
    }
    lock.unlock();
    answer_peers();
    if (const std::string trouble = run_check(); !trouble.empty()) end_job(trouble);
    lock.lock();
  }
}

void Watchdog::fire(const Watched& late) {
  std::string text;
  {
    const std::scoped_lock lock(mutex_);
    const bool collective = late.record != kNoRecord;
    const std::string what = !collective ? late.what
                             : late.record + kRecords >= recorded_
                                 ? to_string(records_[late.record % kRecords].description)
                                 : "a collective older than the last 64";
    text = concat("gave up after ", seconds_text(awake_ - late.started), ": ", what,
                  collective ? " was not completed by the other ranks" : "");
  }
  end_job(text);
}

void Watchdog::end_job(const std::string& reason) {
  print_report(concat(reason, "; the job ends with code 7"));
  ask_peers();
  run_before_end();
  abort_job(exit_code::kCommunication);
}

void Watchdog::set_before_end(std::function<void()> action) {
  const std::scoped_lock lock(action_mutex_);
  before_end_ = std::move(action);
}

void Watchdog::set_check(std::function<std::string()> check) {
  const std::scoped_lock lock(check_mutex_);
  check_ = std::move(check);
}

std::string Watchdog::run_check() {
  const std::scoped_lock lock(check_mutex_);
  return check_ ? check_() : std::string();
}

void Watchdog::run_before_end() {
  const std::scoped_lock lock(action_mutex_);
  if (before_end_) std::exchange(before_end_, {})();
}

/// Asks the others for their reports and gives them a moment to write.
void Watchdog::ask_peers() {
  const int rank = rank_;
  std::vector<MPI_Request> requests;
  const std::scoped_lock link(link_mutex_);
  const auto end = Clock::now() + std::chrono::duration<double>(size_ > 1 ? kGraceSeconds : 0.0);
  while (Clock::now() < end) {
    if (comm_ != MPI_COMM_NULL && progress_->try_lock()) {  // a thread stuck inside MPI may hold it
      if (requests.empty()) {
        for (int peer = 0; peer < size_; ++peer)
          if (peer != rank) MPI_Isend(&rank, 1, MPI_INT, peer, kPrintState, comm_, &requests.emplace_back());
      } else {
        int flag = 0;
        MPI_Testall(static_cast<int>(requests.size()), requests.data(), &flag, MPI_STATUSES_IGNORE);
      }
      progress_->unlock();
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

void Watchdog::answer_peers() {
  int asking = -1;
  {
    const std::scoped_lock link(link_mutex_);
    if (comm_ == MPI_COMM_NULL || answered_) return;
    const std::unique_lock lock(*progress_, std::try_to_lock);
    if (!lock.owns_lock()) return;  // the next tick will do
    int flag = 0;
    MPI_Status status;
    if (MPI_Iprobe(MPI_ANY_SOURCE, kPrintState, comm_, &flag, &status) != MPI_SUCCESS || flag == 0) return;
    MPI_Recv(&asking, 1, MPI_INT, status.MPI_SOURCE, kPrintState, comm_, MPI_STATUS_IGNORE);
    answered_ = true;
  }
  print_report(concat("state, as rank ", asking, " gave up waiting"));
  run_before_end();  // the asking rank ends the job; a communicator must be given up on all ranks or it may hang
}

void Watchdog::print_report(const std::string& reason) const {
  std::string text = concat("apex: rank ", rank_.load(), " (", host_, "): ", reason, '\n');
  {
    const std::scoped_lock lock(mutex_);
    text += report();
  }
  print_block(text);
}

std::string Watchdog::report() const {
  std::ostringstream out;
  out << "  waiting now:" << (watched_.empty() ? " for nothing" : "") << '\n';
  for (const auto& [id, entry] : watched_) {
    out << "    " << seconds_text(now() - entry.started) << "  ";
    if (entry.record == kNoRecord)
      out << entry.what << '\n';
    else if (entry.record + kRecords >= recorded_)
      out << to_string(records_[entry.record % kRecords].description) << '\n';
    else
      out << "a collective older than the last 64\n";
  }
  const std::uint64_t first = recorded_ > kRecords ? recorded_ - kRecords : 0;
  out << "  last " << recorded_ - first << " collectives, oldest first:\n";
  for (std::uint64_t i = first; i < recorded_; ++i) {
    const Record& record = records_[i % kRecords];
    out << "    " << to_string(record.description) << ": "
        << (record.state == State::complete ? concat("done in ", seconds_text(record.seconds)) : "in flight") << '\n';
  }
  return out.str();
}

}  // namespace apex::dist::detail
