// Threads that share out one job at a time.
//
// A job is a function over pieces 0 .. count-1, and whoever is free takes the next piece. The caller takes pieces as
// well and waits only for those that another thread has begun: a helper that lost its core holds up one piece, not its
// share of the job, and one that comes too late finds nothing left. So results must not depend on who computes what.
//
// A helper without work spins for some tens of microseconds, which is how far the jobs of one step lie apart, and then
// sleeps: an idle or a busy machine isn't robbed of a core.
#pragma once

#include <immintrin.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace seedance {

class Threads {
 public:
  explicit Threads(int count) : helpers_() {
    for (int i = 1; i < count; ++i) helpers_.emplace_back([this] { help(); });
  }

  ~Threads() {
    stopping_.store(true);
    wakes_.fetch_add(1);
    wakes_.notify_all();
    for (std::thread& helper : helpers_) helper.join();
  }

  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

  int count() const { return static_cast<int>(helpers_.size()) + 1; }

  // Held by whoever runs jobs: there is one caller at a time.
  std::mutex& turn() { return turn_; }

  // Calls piece(i) for every i below `pieces`, at most 2^32 - 1; returns when all are done.
  template <class Piece>
  void run(int64_t pieces, const Piece& piece) {
    if (pieces <= 1 || helpers_.empty()) {
      for (int64_t i = 0; i < pieces; ++i) piece(i);
      return;
    }
    call_ = [](const void* context, int64_t i) { (*static_cast<const Piece*>(context))(i); };
    context_ = &piece;
    unfinished_.store(pieces, std::memory_order_relaxed);
    ticket_.store(static_cast<uint64_t>(pieces) << 32);
    if (sleepers_.load() > 0) {
      wakes_.fetch_add(1);
      wakes_.notify_all();
    }
    take_pieces();
    for (int spins = 0; unfinished_.load(std::memory_order_acquire) > 0; ++spins) {
      if (spins < kSpins) _mm_pause();
      else std::this_thread::yield();
    }
  }

 private:
  static constexpr int kSpins = 2000;  // some 20 to 40 microseconds

  // The ticket holds the job's number of pieces above, and the next piece below, 32 bits each. Whoever moves it on owns
  // a piece of the job that is current at that moment, and that job can't end before the piece is done: so what else
  // belongs to the job may be read then, and not sooner.
  void take_pieces() {
    uint64_t ticket = ticket_.load(std::memory_order_acquire);
    while (static_cast<uint32_t>(ticket) < ticket >> 32) {
      if (!ticket_.compare_exchange_weak(ticket, ticket + 1, std::memory_order_acq_rel)) continue;
      call_(context_, static_cast<uint32_t>(ticket));
      _mm_sfence();  // what a piece stored past the caches is there, too, before it counts as done
      unfinished_.fetch_sub(1, std::memory_order_release);
      ticket = ticket_.load(std::memory_order_acquire);
    }
  }

  bool has_pieces() const {
    const uint64_t ticket = ticket_.load();
    return static_cast<uint32_t>(ticket) < ticket >> 32;
  }

  void help() {
    while (!stopping_.load()) {
      int spins = 0;
      while (!has_pieces() && ++spins < kSpins) _mm_pause();
      if (spins == kSpins) sleep();
      take_pieces();
    }
  }

  // Either the caller sees this sleeper, or the sleeper sees the caller's job: both look after they have written.
  void sleep() {
    sleepers_.fetch_add(1);
    const uint32_t seen = wakes_.load();
    if (!has_pieces() && !stopping_.load()) wakes_.wait(seen);
    sleepers_.fetch_sub(1);
  }

  std::vector<std::thread> helpers_;
  std::mutex turn_;
  void (*call_)(const void*, int64_t) = nullptr;
  const void* context_ = nullptr;
  alignas(64) std::atomic<uint64_t> ticket_{0};
  alignas(64) std::atomic<int64_t> unfinished_{0};
  alignas(64) std::atomic<uint32_t> wakes_{0};
  std::atomic<int> sleepers_{0};
  std::atomic<bool> stopping_{false};
};

}  // namespace seedance
